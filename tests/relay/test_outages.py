"""What fails between processes, and how little that is: Redis away or frozen, a process killed, frozen, stopped."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis
import websocket

from relay import wire
from relay.leases import CHANGE, LEASE_S, OPERATION_S, PEERS, PROCESS, PROCESSES, REFRESH_S
from relay.wire import Response
from tests.lab.redis import Redis
from tests.relay.conftest import Relay
from tests.relay.ends import hear
from tests.relay.sites import WAIT, Serving, Site, answer, ask, wait_until_known

numbers = itertools.count()  # so that no process is taken for an earlier one
AT_ONCE_S = 0.5
UNACKNOWLEDGED_S = 1.0 + AT_ONCE_S
DEAD_S = LEASE_S + REFRESH_S + AT_ONCE_S
BACK_S = 2.0
IDLE_S = 15.0
LOST, BACK = "Redis can't be used", "Redis is back"


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("redis"))
    yield site
    site.close()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    yield shared_site
    shared_site.close_sockets()


@dataclass(frozen=True)
class Idle:
    """A process of its own with its own Redis, and a peer: left alone since the module began."""

    redis: Redis
    relay: Relay
    started: float


@pytest.fixture(scope="module", autouse=True)
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Idle]:
    with Redis(tmp_path_factory.mktemp("idle")) as server:
        relay = Relay(REDIS_URL=server.url)
        relay.process.wait_for("Joined over Redis")
        Serving(relay, "ee55")
        yield Idle(server, relay, time.monotonic())
        relay.close_sockets()
        assert relay.process.stop() == 0


@pytest.fixture
def third(site: Site) -> Iterator[Relay]:
    """A process that the test may end."""
    relay = site.serve(f"c{next(numbers)}")
    yield relay
    relay.close_sockets()
    if relay.process.is_running:
        relay.process.send(signal.SIGCONT)
        relay.process.kill()


def ask_third(site: Site, third: Relay) -> tuple[Serving, websocket.WebSocket, wire.Request]:
    """A peer at the third process that has been asked by a caller at a, and hasn't answered."""
    peer = Serving(third, "dd44")
    wait_until_known(site.a, "dd44", third.env["RELAY_URL"])
    caller = site.a.connect("/rpc/dd44", site.a.credential("cc33"))
    ask(caller, "open", WAIT)
    asked = peer.wait_for(wire.Request)
    assert isinstance(asked, wire.Request)
    return peer, caller, asked


def outcome(caller: websocket.WebSocket, request_id: str = "1") -> tuple[int, float]:
    """Asks: the status, and after how long."""
    started = time.monotonic()
    ask(caller, request_id)
    heard = hear(caller)
    assert heard.request_id == request_id
    return heard.status, time.monotonic() - started


def wait_until_served(caller: websocket.WebSocket) -> None:
    """Where what is known is back, the way there may take a moment longer."""
    until = time.monotonic() + BACK_S
    while (status := outcome(caller)[0]) != 200:
        assert time.monotonic() < until, status
        time.sleep(0.05)


def said(relay: Relay, what: str) -> int:
    return relay.process.output.count(what)


def test_without_redis_local_traffic_goes_on_the_rest_fails_fast_and_all_is_back_with_it(site: Site) -> None:
    peer = Serving(site.b, "aa11")
    wait_until_known(site.a, "aa11", "ws://b.example")
    far, near = (relay.connect("/rpc/aa11", site.a.credential("cc33")) for relay in (site.a, site.b))
    ask(far, "open", WAIT)
    peer.wait_for(wire.Request)
    before = [(said(relay, LOST), said(relay, BACK)) for relay in (site.a, site.b)]
    site.redis.kill()
    heard = hear(far)
    assert (heard.request_id, heard.status) == ("open", 503)
    peer.wait_for(wire.Cancel)
    site.b.register("bb22")  # nobody can be told of it now
    time.sleep(1)
    status, took_s = outcome(far)
    assert status == 503
    assert took_s < AT_ONCE_S
    assert outcome(near)[0] == 200
    assert set(site.b.get("/figures").json()["where"]) == {"aa11", "bb22"}
    assert site.a.get("/figures").elapsed.total_seconds() < AT_ONCE_S
    site.redis.start()
    wait_until_known(site.a, "aa11", "ws://b.example", BACK_S)
    wait_until_known(site.a, "bb22", "ws://b.example", BACK_S)
    wait_until_served(far)
    after = [(said(relay, LOST), said(relay, BACK)) for relay in (site.a, site.b)]
    assert after == [(lost + 1, back + 1) for lost, back in before]


def test_a_frozen_redis_is_as_good_as_none(site: Site) -> None:
    Serving(site.b, "aa11")
    wait_until_known(site.a, "aa11", "ws://b.example")
    far, near = (relay.connect("/rpc/aa11", site.a.credential("cc33")) for relay in (site.a, site.b))
    before = said(site.a, LOST)
    site.redis.freeze()
    try:
        outcomes = [outcome(far, f"{number}") for number in range(2)]
        assert [status for status, _ in outcomes] == [503, 503]
        assert outcomes[0][1] < UNACKNOWLEDGED_S
        assert outcomes[1][1] < AT_ONCE_S
        assert outcome(near)[0] == 200
        until = time.monotonic() + OPERATION_S + REFRESH_S + BACK_S
        while said(site.a, LOST) == before:
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        site.redis.thaw()
    wait_until_known(site.a, "aa11", "ws://b.example", BACK_S)
    wait_until_served(far)


def test_a_killed_process_fails_its_requests_when_its_lease_is_over(site: Site, third: Relay) -> None:
    _, caller, _ = ask_third(site, third)
    time.sleep(0.3)  # by then its process has acknowledged the request
    started = time.monotonic()
    third.process.kill()
    assert hear(caller).status == 502
    assert time.monotonic() - started < DEAD_S
    wait_until_known(site.a, "dd44", None)
    assert outcome(caller)[0] == 404
    Serving(site.b, "dd44")
    wait_until_known(site.a, "dd44", "ws://b.example")
    wait_until_served(caller)


def test_a_frozen_process_costs_a_second_once_and_is_itself_again_when_it_wakes(site: Site, third: Relay) -> None:
    peer, caller, _ = ask_third(site, third)
    third.process.send(signal.SIGSTOP)
    ask(caller, "lost")
    started = time.monotonic()
    assert {hear(caller).status for _ in range(2)} == {503}
    assert time.monotonic() - started < UNACKNOWLEDGED_S
    status, took_s = outcome(caller)
    assert status == 503
    assert took_s < AT_ONCE_S
    wait_until_known(site.a, "dd44", None, DEAD_S)
    third.process.send(signal.SIGCONT)
    wait_until_known(site.a, "dd44", third.env["RELAY_URL"])
    peer.wait_for(wire.Cancel)
    wait_until_served(caller)


def test_a_process_that_stops_is_nowhere_at_once_and_finishes_what_it_has(site: Site, third: Relay) -> None:
    peer, caller, asked = ask_third(site, third)
    third.process.send(signal.SIGTERM)
    wait_until_known(site.a, "dd44", None, AT_ONCE_S)
    answer(peer.ws, Response(asked.request_id, 200, body=b"last"))
    assert hear(caller).body == b"last"
    assert third.process.wait(10) == 0
    with redis.Redis.from_url(site.redis.url, decode_responses=True) as store:
        assert third.env["RELAY_URL"] not in store.mget(store.keys(f"{PROCESS}*"))


def test_what_a_stopping_process_could_not_finish_ends_with_an_error(site: Site, third: Relay) -> None:
    _, caller, _ = ask_third(site, third)
    third.process.send(signal.SIGTERM)
    third.process.wait_for("Stopping")
    third.process.send(signal.SIGTERM)
    assert hear(caller).status == 503
    assert third.process.wait(10) == 0


def test_churn_leaves_a_bounded_number_of_keys(site: Site) -> None:
    for number in range(20):
        for relay in (site.a, site.b):
            relay.register(f"{number % 3}{number % 3}").close()
    with redis.Redis.from_url(site.redis.url, decode_responses=True) as store:
        until = time.monotonic() + DEAD_S
        while (left := store.hgetall(PEERS)) or len(store.keys(f"{PROCESS}*")) > 2:
            assert time.monotonic() < until, (left, store.mget(store.keys(f"{PROCESS}*")), site.logs())
            time.sleep(0.05)
        assert {key for key in store.keys("*") if not key.startswith(PROCESS)} <= {CHANGE, PROCESSES}


def test_a_process_and_a_peer_that_are_idle_for_15_s_stay(idle: Idle) -> None:
    """With the shipped settings: redis-py's own would end an idle subscription after five."""
    time.sleep(max(0.0, idle.started + IDLE_S - time.monotonic()))
    caller = idle.relay.connect("/rpc/ee55", idle.relay.credential("cc33"))
    assert outcome(caller)[0] == 200
    assert (said(idle.relay, "Joined"), said(idle.relay, LOST), said(idle.relay, "ee55 is here")) == (1, 0, 1)
    with redis.Redis.from_url(idle.redis.url, decode_responses=True) as store:
        assert set(store.hgetall(PEERS)) == {"ee55"}
