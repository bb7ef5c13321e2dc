"""R1. Bodies at the limit, one byte around it, and far over it.

What our own clients refuse before they send it: tests/nodes/test_hops.py.
"""

from __future__ import annotations

import contextlib
import hashlib

import pytest
import websocket

from tests.lab.ends import Answer, Envelope
from tests.relay_cases.served import World, echo

LIMIT = 1024 * 1024  # as the welcome announces it


def body_of(size: int) -> bytes:
    """No two sizes share a prefix; every octet occurs."""
    return (hashlib.sha256(str(size).encode()).digest() + bytes(range(256))) * (size // 288) + bytes(size % 288)


def test_the_welcome_announces_the_limit(world: World) -> None:
    """R1."""
    assert world.peer().welcome["limits"]["max_body_bytes"] == LIMIT


@pytest.mark.parametrize(("over", "status"), [(-1, 200), (0, 200), (1, 413), (LIMIT, 413)])
def test_a_request_of_the_limit_passes_and_one_over_it_is_413_on_a_socket_that_lives(
    world: World, over: int, status: int
) -> None:
    """R1."""
    peer, caller = world.peer(serve=echo), world.caller()
    body = body_of(LIMIT + over)
    heard = caller.asked("big", body)
    assert (heard.request_id, heard.status) == ("big", status)
    if status == 200:
        assert heard.body == body
    else:
        assert heard.code == "too_large"
        assert not peer.requests
    assert caller.asked("small", b"x").body == b"x"


@pytest.mark.parametrize(("over", "status"), [(-1, 200), (0, 200), (1, 413), (LIMIT, 413)])
def test_an_answer_of_the_limit_passes_and_one_over_it_is_413_and_both_sockets_live(
    world: World, over: int, status: int
) -> None:
    """R1."""
    answer = body_of(LIMIT + over)

    def serve(envelope: Envelope, body: bytes) -> Answer:
        return 200, {}, answer if body == b"big" else body

    peer, caller = world.peer(serve=serve), world.caller()
    heard = caller.asked("big", b"big")
    assert (heard.request_id, heard.status) == ("big", status)
    assert heard.body == answer if status == 200 else heard.code == "too_large"
    assert caller.asked("small", b"x").body == b"x"
    assert not peer.ended.is_set()


def test_a_foreign_caller_that_sends_64_mib_is_disconnected_and_nobody_else_notices(near_world: World) -> None:
    """R1."""
    near_world.peer(serve=echo)
    other, foreign = near_world.caller(peer_id="cc33"), near_world.caller(peer_id="dd44")
    other.ask("before", b"1")
    with contextlib.suppress(OSError, websocket.WebSocketException):  # it goes while we send
        foreign.ask("huge", bytes(64 * LIMIT))
    assert foreign.ended.wait(10)
    assert other.hear().body == b"1"
    assert other.asked("after", b"2").body == b"2"
    assert "aa11" in near_world.present()


def test_a_foreign_peer_that_answers_64_mib_is_disconnected_and_whoever_asked_it_is_told(near_world: World) -> None:
    """R1."""

    def serve(envelope: Envelope, body: bytes) -> Answer:
        return 200, {}, bytes(64 * LIMIT)

    foreign, _ = near_world.peer("bb22", serve), near_world.peer("aa11", echo)
    asking, other = near_world.caller("bb22", "cc33"), near_world.caller("aa11", "dd44")
    heard = asking.asked("huge", b"x")
    assert (heard.request_id, heard.status, heard.code) == ("huge", 502, "peer_gone")
    assert foreign.ended.wait(10)
    assert other.asked("1", b"1").body == b"1"
    assert "aa11" in near_world.present()
