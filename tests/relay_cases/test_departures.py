"""N6, R10. Who goes, and who comes twice: the others are told at once, and nothing is taken from the one who stays.

That a peer which goes in the middle of a stream is 502: tests/relay/test_interop.py. Two connections with one id at two
processes: tests/relay/test_processes.py.
"""

from __future__ import annotations

import threading
import time

import pytest

from tests.relay_cases.served import VERSIONS, Deployment, Served, World, echo


@pytest.mark.parametrize("how", ["close", "die"])
def test_a_caller_that_goes_while_the_peer_works_cancels_at_the_peer_and_is_counted(world: World, how: str) -> None:
    """R10."""
    before = world.callers_at.figures()["outcomes"].get("cancelled", 0)
    peer, caller, other = world.peer(), world.caller(), world.caller(peer_id="dd44")
    for number in range(3):
        caller.ask(str(number), b"work")
    other.ask("other", b"work")
    asked = [envelope["request_id"] for envelope in peer.wait_for_requests(4)]
    getattr(caller, how)()
    cancelled = peer.wait_for_cancels(3)
    assert len(set(cancelled)) == 3
    assert world.callers_at.figures()["outcomes"]["cancelled"] == before + 3
    for request_id in asked:  # the late answers of the cancelled ones reach nobody
        peer.answer(request_id, body=b"done")
    assert other.hear().body == b"done"
    assert other.asked("next", deadline_ms=200).code == "deadline", "what came before it was for nobody"


@pytest.mark.parametrize("how", ["close", "die"])
def test_a_peer_that_goes_with_five_calls_in_flight_is_five_502_in_under_a_second(world: World, how: str) -> None:
    """R10."""
    peer = world.peer()
    callers = [world.caller(peer_id=f"{number:04x}") for number in range(5)]
    for number, caller in enumerate(callers):
        caller.ask(f"n{number}", b"work")
    peer.wait_for_requests(5)
    started = time.monotonic()
    getattr(peer, how)()
    heard = [caller.hear(5) for caller in callers]
    assert time.monotonic() - started < 1
    assert [(answer.request_id, answer.status, answer.code) for answer in heard] == [
        (f"n{number}", 502, "peer_gone") for number in range(5)
    ]
    assert callers[0].asked("later").code in ("not_found", "peer_gone"), "the news may still be on its way"
    world.peer(serve=echo)
    assert callers[0].asked("back", b"here").body == b"here"


def test_a_peer_killed_while_calls_arrive_answers_each_of_them_once(world: World) -> None:
    """R10. What is asked around the moment of its going has an outcome too."""
    callers = [world.caller(peer_id=f"{number:04x}") for number in range(4)]
    for _ in range(5):
        peer = world.peer()
        killing = threading.Timer(0.01, peer.die)
        killing.start()
        for number in range(10):
            for caller in callers:
                caller.ask(str(number))
            time.sleep(0.002)
        for caller in callers:
            heard = sorted((answer.request_id, answer.status) for answer in (caller.hear(5) for _ in range(10)))
            assert [request_id for request_id, _ in heard] == [str(number) for number in range(10)]
            assert {status for _, status in heard} <= {502, 404}
        killing.join()


@pytest.mark.parametrize("newer", VERSIONS)
def test_the_newer_of_two_connections_with_one_id_stays_when_the_older_goes(world: World, newer: int) -> None:
    """N6. Of any two wire versions, so that an upgraded node may replace its former self."""
    old = world.peer()
    caller = world.caller()
    caller.ask("to-the-old")
    old.wait_for_requests(1)
    new = world.peer(serve=echo, version=newer)
    assert caller.hear().status == 502
    assert old.wait_for_end() == (409, 4409)
    old.close()
    assert "aa11" in world.present()
    for number in range(5):
        assert caller.asked(str(number), b"x").body == b"x"
    assert not new.ended.is_set()


def test_a_replaced_connection_that_is_not_closed_by_its_owner_still_takes_nothing_from_the_newer(world: World) -> None:
    """N6. The old one's late clean-up, when it comes, can't touch the new one."""
    old = world.peer(reads=False)
    world.peer(serve=echo)
    caller = world.caller()
    assert caller.asked("1", b"x").body == b"x"
    old.die()
    time.sleep(0.2)
    assert caller.asked("2", b"y").body == b"y"
    assert "aa11" in world.present()


def test_two_machines_with_one_key_take_turns_slowly_and_whoever_asks_meanwhile_is_answered(served: Served) -> None:
    """N6. Each throws the other out, but not many times a second."""
    with World(Deployment(served, served), 2) as world:
        caller = world.caller()
        world.peer(serve=echo)
        statuses: list[int] = []
        registered = threading.Event()

        def ask_often() -> None:
            while not registered.is_set():
                statuses.append(caller.asked(str(len(statuses)), b"x", deadline_ms=2000).status)
                time.sleep(0.01)

        asking = threading.Thread(target=ask_often)
        asking.start()
        took_s = 0.0
        for _ in range(12):
            if took_s < 1:
                started = time.monotonic()
                world.peer(serve=echo)
                took_s = time.monotonic() - started
        registered.set()
        asking.join(5)
        assert 1 < took_s < 5
        assert set(statuses) <= {200, 502}
        assert statuses.count(200) > len(statuses) * 0.9
