from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.outbox import MAX_BYTES, Outbox
from relay import envelope, wire
from relay.wire import Chunk, Response


class FakeConnection:
    """Takes what is sent once `gate` is set."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False
        self.was_shut_down = threading.Event()

    def send(self, text: str, deadline: Deadline) -> None:
        assert self.gate.wait(10)
        if self.failing:
            raise ConnectionFailed("cut")
        self.sent.append(envelope.decode_answer(text))

    def ping(self, deadline: Deadline) -> None:
        self.sent.append("ping")

    def pong(self, data: bytes) -> None:
        self.sent.append(data)

    def shut_down(self) -> None:
        self.was_shut_down.set()


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def outbox(connection: FakeConnection) -> Any:
    box = Outbox(cast(Connection, connection))
    box.start()
    yield box
    connection.gate.set()
    box.close()
    box.join(5)


def test_it_sends_in_the_order_in_which_it_was_given(connection: FakeConnection, outbox: Outbox) -> None:
    assert outbox.offer(Response("a", 200, {}, b"1"))
    outbox.force(None)
    outbox.force(b"ping data")
    outbox.put(Chunk("b", b"2"), Deadline.after(1))

    assert outbox.drain(Deadline.after(5))
    assert connection.sent == [Response("a", 200, {}, b"1"), "ping", b"ping data", Chunk("b", b"2")]


def test_over_its_bound_it_says_no_and_never_waits(connection: FakeConnection, outbox: Outbox) -> None:
    connection.gate.clear()
    answer = Response("a", 200, {}, bytes(wire.MAX_BODY_BYTES))
    taken = [outbox.offer(answer) for _ in range(20)]

    assert taken[0]
    assert not taken[-1]
    assert sum(taken) * wire.MAX_BODY_BYTES <= MAX_BYTES


def test_an_error_is_told_even_then(connection: FakeConnection, outbox: Outbox) -> None:
    connection.gate.clear()
    while outbox.offer(Response("a", 200, {}, bytes(wire.MAX_BODY_BYTES))):
        pass
    outbox.force(wire.error_response("b", wire.Code.BUSY, "full"))
    connection.gate.set()

    assert outbox.drain(Deadline.after(10))
    assert connection.sent[-1].status == 503


def test_a_chats_event_waits_for_room_and_goes_then(connection: FakeConnection, outbox: Outbox) -> None:
    connection.gate.clear()
    while outbox.offer(Chunk("a", bytes(1_000_000))):
        pass
    with pytest.raises(TimeoutError):
        outbox.put(Chunk("b", bytes(1_000_000)), Deadline.after(0.05))

    threading.Timer(0.05, connection.gate.set).start()
    outbox.put(Chunk("b", bytes(1_000_000)), Deadline.after(10))


def test_a_failed_send_ends_the_connection_and_everyone_hears_of_it(connection: FakeConnection, outbox: Outbox) -> None:
    connection.failing = True
    outbox.offer(Response("a", 200))

    assert connection.was_shut_down.wait(5)
    with pytest.raises(ConnectionFailed):
        outbox.put(Chunk("b", b""), Deadline.after(5))
