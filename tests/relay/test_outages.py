"""What fails between processes, and how little that is: Redis away or frozen, a process killed, frozen, stopped."""

from __future__ import annotations

import signal
import threading
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
from tests.relay.ends import end, hear, take, told
from tests.relay.sites import Site, answer, ask, connected, wait_until_known

AT_ONCE_S = 0.5
UNACKNOWLEDGED_S = 1.5  # a second, and the ticks around it
DEAD_S = LEASE_S + REFRESH_S + 0.5
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
        peer = relay.register("ee55", timeout=60)
        serving = threading.Thread(target=serve_one, args=[peer])
        serving.start()
        yield Idle(server, relay, time.monotonic())
        relay.close_sockets()
        serving.join(10)
        assert relay.process.stop() == 0


def serve_one(peer: websocket.WebSocket) -> None:
    """Answers pings until the one request comes."""
    answer(peer, Response(take(peer).request_id, 200))


@pytest.fixture
def third(site: Site) -> Iterator[Relay]:
    """A process that the test may end."""
    relay = site.serve("c")
    yield relay
    relay.close_sockets()
    if relay.process.is_running:
        relay.process.send(signal.SIGCONT)
        relay.process.kill()


def ask_third(site: Site, third: Relay) -> tuple[websocket.WebSocket, websocket.WebSocket, wire.Request]:
    """A peer at the third process that has been asked by a caller at a."""
    peer = third.register("dd44")
    wait_until_known(site.a, "dd44", "ws://c.example")
    caller = site.a.connect("/rpc/dd44", site.a.credential("cc33"))
    ask(caller, "open")
    return peer, caller, take(peer)


def outcome_s(caller: websocket.WebSocket, request_id: str, status: int) -> float:
    """Asks, expects the status; how long it took."""
    started = time.monotonic()
    ask(caller, request_id)
    heard = hear(caller)
    assert (heard.request_id, heard.status) == (request_id, status), heard
    return time.monotonic() - started


def serves(peer: websocket.WebSocket, caller: websocket.WebSocket) -> bool:
    ask(caller, "works", b"works")
    while (asked := told(peer)) and not (isinstance(asked, wire.Request) and asked.body):
        pass  # cancels and requests of before
    answer(peer, Response(asked.request_id, 200))
    return hear(caller).status == 200


def ask_status(caller: websocket.WebSocket) -> int:
    """The status of a request that nobody answers: by whom it is refused, or its deadline."""
    ask(caller, deadline_ms=100)
    return hear(caller).status


def said(relay: Relay, what: str) -> int:
    return relay.process.output.count(what)


def test_without_redis_local_traffic_goes_on_the_rest_fails_fast_and_all_is_back_with_it(site: Site) -> None:
    peer, far = connected(site)
    near = site.b.connect("/rpc/aa11", site.b.credential("cc33"))
    ask(far, "open")
    asked = take(peer)
    before = [(said(relay, LOST), said(relay, BACK)) for relay in (site.a, site.b)]
    site.redis.kill()
    heard = hear(far)
    assert (heard.request_id, heard.status) == ("open", 503)
    assert told(peer) == wire.Cancel(asked.request_id)
    site.b.register("bb22")  # nobody can be told of it now
    time.sleep(1)
    assert outcome_s(far, "1", 503) < AT_ONCE_S
    assert serves(peer, near)
    site.redis.start()
    wait_until_known(site.a, "aa11", "ws://b.example", BACK_S)
    wait_until_known(site.a, "bb22", "ws://b.example", BACK_S)
    assert serves(peer, far)
    after = [(said(relay, LOST), said(relay, BACK)) for relay in (site.a, site.b)]
    assert after == [(lost + 1, back + 1) for lost, back in before]


def test_a_frozen_redis_is_as_good_as_none(site: Site) -> None:
    peer, far = connected(site)
    near = site.b.connect("/rpc/aa11", site.b.credential("cc33"))
    site.redis.freeze()
    try:
        assert outcome_s(far, "1", 503) < UNACKNOWLEDGED_S
        assert outcome_s(far, "2", 503) < AT_ONCE_S
        assert serves(peer, near)
        for relay in (site.a, site.b):
            relay.process.wait_for(LOST, OPERATION_S + REFRESH_S + 1)
    finally:
        site.redis.thaw()
    wait_until_known(site.a, "aa11", "ws://b.example", BACK_S)
    until = time.monotonic() + BACK_S
    while ask_status(far) == 503:
        assert time.monotonic() < until
    assert serves(peer, near)


def test_a_killed_process_fails_its_requests_when_its_lease_is_over(site: Site, third: Relay) -> None:
    _, caller, _ = ask_third(site, third)
    time.sleep(0.3)  # by then its process has acknowledged the request
    started = time.monotonic()
    third.process.kill()
    assert hear(caller).status == 502
    assert time.monotonic() - started < DEAD_S
    wait_until_known(site.a, "dd44", None)
    assert outcome_s(caller, "later", 404) < AT_ONCE_S
    moved = site.b.register("dd44")
    wait_until_known(site.a, "dd44", "ws://b.example")
    assert serves(moved, caller)


def test_a_frozen_process_costs_a_second_once_and_is_itself_again_when_it_wakes(site: Site, third: Relay) -> None:
    peer, caller, asked = ask_third(site, third)
    third.process.send(signal.SIGSTOP)
    ask(caller, "lost")
    started = time.monotonic()
    assert {hear(caller).status for _ in range(2)} == {503}
    assert time.monotonic() - started < UNACKNOWLEDGED_S
    assert outcome_s(caller, "next", 503) < AT_ONCE_S
    wait_until_known(site.a, "dd44", None, DEAD_S)
    third.process.send(signal.SIGCONT)
    wait_until_known(site.a, "dd44", "ws://c.example")
    cancelled = told(peer)
    while isinstance(cancelled, wire.Request):  # what was asked in vain may still arrive
        cancelled = told(peer)
    assert cancelled == wire.Cancel(asked.request_id)
    assert ask_status(caller) in (503, 504)


def test_a_process_that_stops_is_nowhere_at_once_and_finishes_what_it_has(site: Site, third: Relay) -> None:
    peer, caller, asked = ask_third(site, third)
    third.process.send(signal.SIGTERM)
    wait_until_known(site.a, "dd44", None, AT_ONCE_S)
    answer(peer, Response(asked.request_id, 200, body=b"last"))
    assert hear(caller).body == b"last"
    assert end(peer) == (503, wire.CLOSE_DRAINING)
    assert third.process.wait(10) == 0
    with redis.Redis.from_url(site.redis.url, decode_responses=True) as store:
        assert len(store.keys(f"{PROCESS}*")) == 2


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
    wait_until_known(site.a, "22", None)
    with redis.Redis.from_url(site.redis.url, decode_responses=True) as store:
        until = time.monotonic() + 5
        while store.hlen(PEERS):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert set(store.keys()) == {CHANGE, PROCESSES, *(PROCESS + process for process in store.smembers(PROCESSES))}
        assert len(store.smembers(PROCESSES)) == 2


def test_a_process_and_a_peer_that_are_idle_for_15_s_stay(idle: Idle) -> None:
    """With the shipped settings: redis-py's own would end an idle subscription after five."""
    time.sleep(max(0.0, idle.started + IDLE_S - time.monotonic()))
    caller = idle.relay.connect("/rpc/ee55", idle.relay.credential("cc33"))
    ask(caller)
    assert hear(caller).status == 200
    assert (said(idle.relay, "Joined"), said(idle.relay, LOST), said(idle.relay, "ee55 is here")) == (1, 0, 1)
    with redis.Redis.from_url(idle.redis.url, decode_responses=True) as store:
        assert set(store.hgetall(PEERS)) == {"ee55"}
