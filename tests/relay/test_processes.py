"""Two `manage.py serve` processes that share a real Redis: nodes at one, callers at the other."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from relay import wire
from relay.wire import Chunk, End, Response
from tests.relay.ends import end, hear, take, told
from tests.relay.sites import Serving, Site, answer, ask, connected, wait_until_known
from tests.relay.tunnels import Tunnel


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("redis"))
    yield site
    site.close()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    yield shared_site
    shared_site.close_sockets()


@pytest.mark.parametrize("size", [1200, wire.MAX_BODY_BYTES])
def test_a_request_and_its_answer_cross_whole(site: Site, size: int) -> None:
    peer, caller = connected(site)
    question, reply = os.urandom(size), os.urandom(size)
    ask(caller, "mine", question)
    asked = take(peer)
    assert (asked.body, asked.sender, asked.headers) == (question, "cc33", {"x-a": "1"})
    answer(peer, Response(asked.request_id, 201, {"x-b": "2"}, reply))
    assert hear(caller) == Response("mine", 201, {"x-b": "2"}, reply)


def test_many_requests_answered_in_any_order_each_get_their_own(site: Site) -> None:
    peer, caller = connected(site)
    for number in range(40):
        ask(caller, f"r{number}", os.urandom(3000) + b"%d" % number)
    asked = [take(peer) for _ in range(40)]
    for request in sorted(asked, key=lambda it: hashlib.sha256(it.body).digest()):
        answer(peer, Response(request.request_id, 200, body=request.body[3000:]))
    heard = [hear(caller) for _ in range(40)]
    assert {it.request_id: it.body for it in heard} == {f"r{number}": b"%d" % number for number in range(40)}


def test_the_tracker_of_one_process_streams_from_a_peer_of_the_other(site: Site) -> None:
    peer = site.b.register("aa11")
    wait_until_known(site.a, "aa11", "ws://b.example")
    texts: list[str] = []
    reading = threading.Thread(target=lambda: texts.append(site.a.get("/call/aa11").text))
    reading.start()
    asked = take(peer)
    assert asked.sender == wire.TRACKER
    answer(peer, Response(asked.request_id, 200, stream=True))
    for number in range(50):
        answer(peer, Chunk(asked.request_id, b"%d," % number))
    answer(peer, End(asked.request_id))
    reading.join(10)
    assert [line.split("data=")[1] for line in texts[0].splitlines()[1:-1]] == [f"b'{n},')" for n in range(50)]


def test_a_caller_that_leaves_is_a_cancel_at_the_peer(site: Site) -> None:
    peer, caller = connected(site)
    ask(caller)
    asked = take(peer)
    caller.close()
    assert told(peer) == wire.Cancel(asked.request_id)


def test_a_deadline_is_kept_and_the_peer_told(site: Site) -> None:
    peer, caller = connected(site)
    ask(caller, deadline_ms=200)
    asked = take(peer)
    assert asked.deadline_ms
    assert asked.deadline_ms <= 200
    assert hear(caller).status == 504
    assert told(peer) == wire.Cancel(asked.request_id)


def test_a_peer_that_leaves_fails_its_requests_at_once(site: Site) -> None:
    peer, caller = connected(site)
    for number in range(5):
        ask(caller, f"{number}")
        take(peer)
    started = time.monotonic()
    peer.close()
    assert {(hear(caller).status) for _ in range(5)} == {502}
    assert time.monotonic() - started < 1
    wait_until_known(site.a, "aa11", None)
    ask(caller, "later")
    assert hear(caller).status == 404


def test_each_process_can_tell_how_it_goes_with_the_peers_of_the_other(site: Site) -> None:
    site.b.register("aa11")
    until = time.monotonic() + 5
    while not (row := site.a.get("/connected").json().get("aa11", {})).get("figures"):
        assert time.monotonic() < until, row
        time.sleep(0.05)
    assert (row["process"], row["scope"], row["address"], row["version"]) == ("ws://b.example", "tiny", "127.0.0.1", 1)
    assert row["figures"]["bytes_in"] > 0
    assert site.b.get("/connected").json()["aa11"]["since"] == row["since"]


def test_a_peer_of_another_model_is_as_unknown_as_one_that_is_not_there(site: Site) -> None:
    site.b.register("aa11")
    wait_until_known(site.a, "aa11", "ws://b.example")
    stranger = site.a.connect("/rpc/aa11", site.a.credential("dd44", scope="another"))
    ask(stranger)
    assert hear(stranger).status == 404


def test_the_newest_registration_wins_over_processes(site: Site) -> None:
    old = site.b.register("aa11")
    wait_until_known(site.a, "aa11", "ws://b.example")
    new = site.a.register("aa11")
    assert end(old) == (409, wire.CLOSE_REPLACED)
    wait_until_known(site.b, "aa11", "ws://a.example")
    caller = site.b.connect("/rpc/aa11", site.b.credential("cc33"))
    ask(caller)
    answer(new, Response(take(new).request_id, 200))
    assert hear(caller).status == 200


def test_a_credential_revoked_at_one_process_closes_sockets_at_the_other(site: Site) -> None:
    peer = site.b.register("aa11")
    wait_until_known(site.a, "aa11", "ws://b.example")
    site.a.get("/revoke/aa11")
    assert end(peer) == (401, wire.CLOSE_CREDENTIAL)


def test_a_connection_that_is_closed_at_one_process_ends_at_the_other_and_may_come_back(site: Site) -> None:
    peer = site.b.register("aa11")
    wait_until_known(site.a, "aa11", "ws://b.example")
    site.a.get("/disconnect/aa11")
    assert end(peer) == (503, wire.CLOSE_DRAINING)
    site.b.register("aa11")


def test_on_version_2_nodes_ask_each_other_over_processes_on_their_one_socket(site: Site) -> None:
    a, b = Tunnel.register(site.a, "aa11"), Tunnel.register(site.b, "bb22")
    wait_until_known(site.a, "bb22", "ws://b.example")
    wait_until_known(site.b, "aa11", "ws://a.example")
    a.ask("mine", to="bb22", body=b"there")
    b.ask("mine", to="aa11", body=b"and back")
    for tunnel, sender, body in ((a, "bb22", b"and back"), (b, "aa11", b"there")):
        asked = tunnel.take()
        assert (asked.sender, asked.body) == (sender, body)
        tunnel.say(Response(asked.request_id, 200, stream=True))
        tunnel.say(Chunk(asked.request_id, asked.body))
        tunnel.say(End(asked.request_id))
    for tunnel, sender, body in ((a, "bb22", b"there"), (b, "aa11", b"and back")):
        answers = [tunnel.addressed() for _ in range(3)]
        assert [it.frame for it in answers] == [Response("mine", 200, stream=True), Chunk("mine", body), End("mine")]
        assert {it.sender for it in answers} == {sender}


def test_on_version_2_a_cancel_crosses_and_an_error_comes_back_as_one(site: Site) -> None:
    a, b = Tunnel.register(site.a, "aa11"), Tunnel.register(site.b, "bb22")
    wait_until_known(site.a, "bb22", "ws://b.example")
    a.ask("1", to="bb22")
    asked = b.take().request_id
    a.say(wire.Cancel("1"))
    assert b.hear() == wire.Cancel(asked)
    a.ask("2", to="bb22")
    b.take()
    b.ws.close()
    error = a.hear()
    assert isinstance(error, wire.Error)
    assert (error.request_id, error.code) == ("2", wire.Code.PEER_GONE)


def test_a_burst_over_the_window_between_processes_is_answered_or_refused_each_once(site: Site) -> None:
    peer = Serving(site.b, "aa11")
    wait_until_known(site.a, "aa11", "ws://b.example")
    callers = [site.a.connect("/rpc/aa11", site.a.credential(f"c{number}")) for number in range(3)]
    for caller in callers:
        for number in range(3):
            ask(caller, f"{number}", bytes(wire.MAX_BODY_BYTES))
    statuses = Counter[int]()
    for caller in callers:
        heard = [hear(caller) for _ in range(3)]
        assert {it.request_id for it in heard} == {f"{number}" for number in range(3)}
        statuses.update(it.status for it in heard)
    assert statuses[200] >= 3
    assert set(statuses) <= {200, 429, 503}
    assert len(peer.heard) == statuses[200]
