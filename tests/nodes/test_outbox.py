from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.dialects import FrameDialect
from nodes.framing import Outgoing
from nodes.outbox import MAX_BYTES, Outbox
from nodes.pulse import Pulse
from relay import codec, wire
from relay.wire import Cancel, Chunk, Ping, Pong, Request, Response
from tests.nodes.websockets import PONG

MIB = wire.MAX_BODY_BYTES


class FakeConnection:
    """Takes what is sent once `gate` is set, and answers PINGs while `is_alive`."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failing = False
        self.is_alive = True
        self.num_overlapping, self._alone = 0, threading.Lock()
        self.heard_pong: Callable[[int], None] = lambda number: None
        self.was_shut_down = threading.Event()

    def send_message(self, message: Outgoing, deadline: Deadline) -> int:
        assert self.gate.wait(10)
        if self.failing:
            raise ConnectionFailed("cut")
        self.num_overlapping += not self._alone.acquire(blocking=False)
        try:
            return self._take(message)
        finally:
            self._alone.release()

    def _take(self, message: Outgoing) -> int:
        assert isinstance(message.payload, bytes)
        if message.opcode == PONG:
            self.sent.append(message.payload)
            return 0
        frame = codec.decode_frame(message.payload).frame
        if not isinstance(frame, Ping):
            self.sent.append(frame)
        elif self.is_alive:
            threading.Thread(target=self.heard_pong, args=(frame.n,)).start()
        return len(message.payload)

    def send_now(self, message: Outgoing) -> tuple[int, bytes]:
        """Where the gate is closed not even the first byte goes."""
        assert isinstance(message.payload, bytes)
        if self.gate.is_set():
            return self.send_message(message, Deadline.after(1)), b""
        return len(message.payload), message.payload

    def send_rest(self, data: bytes, deadline: Deadline) -> None:
        self.send_message(Outgoing.of(data), deadline)

    def shut_down(self) -> None:
        self.was_shut_down.set()


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture
def outbox(connection: FakeConnection) -> Any:
    box = Outbox(cast(Connection, connection), FrameDialect(), Pulse(600))
    connection.heard_pong = box.heard_pong
    box.start()
    yield box
    connection.gate.set()
    box.close()
    box.join(5)


def question(request_id: str, num_bytes: int = MIB) -> Request:
    return Request(request_id, "POST", "/forward", {}, bytes(num_bytes))


def test_it_sends_in_the_order_in_which_it_was_given(connection: FakeConnection, outbox: Outbox) -> None:
    assert outbox.offer(Response("a", 200, {}, b"1"))
    outbox.force(Cancel("c"))
    outbox.put(Chunk("b", b"2"), Deadline.after(1))
    assert outbox.ask(question("d", 1), "ab" * 16)

    assert outbox.drain(Deadline.after(5))
    assert connection.sent == [Response("a", 200, {}, b"1"), Cancel("c"), Chunk("b", b"2"), question("d", 1)]


def test_signs_of_life_overtake_what_waits(connection: FakeConnection, outbox: Outbox) -> None:
    connection.gate.clear()
    for number in range(3):
        outbox.force(Cancel(f"c{number}"))
    outbox.answer_ping(Ping(7))
    outbox.answer_ping(b"of the WebSocket")
    connection.gate.set()

    assert outbox.drain(Deadline.after(5))
    places = [connection.sent.index(sign) for sign in (Pong(7), b"of the WebSocket")]
    assert max(places) < connection.sent.index(Cancel("c2"))


def test_while_the_other_side_takes_nothing_questions_are_refused_and_streams_wait(
    connection: FakeConnection, outbox: Outbox
) -> None:
    connection.is_alive = False
    taken = [outbox.ask(question(f"a{number}"), "ab" * 16) for number in range(10)]
    assert outbox.drain(Deadline.after(10))

    assert sum(taken) == 7  # with what stands around a body, the eighth doesn't fit any more
    with pytest.raises(TimeoutError):
        outbox.put(Chunk("b", bytes(MIB)), Deadline.after(0.05))
    assert outbox.offer(Response("c", 200)), "an answer isn't refused"


def test_an_answered_question_makes_room_once_its_bytes_are_taken(connection: FakeConnection, outbox: Outbox) -> None:
    for number in range(7):
        assert outbox.ask(question(f"a{number}"), "ab" * 16)
    assert outbox.drain(Deadline.after(10))
    assert not outbox.ask(question("late"), "ab" * 16)
    for number in range(7):
        outbox.settled(f"a{number}")

    outbox.put(Chunk("b", bytes(MIB)), Deadline.after(5))


def test_a_question_that_is_given_up_before_it_went_out_isnt_sent(connection: FakeConnection, outbox: Outbox) -> None:
    connection.gate.clear()
    outbox.force(Cancel("first"))
    for name in ("a", "b"):
        outbox.ask(question(name, 1), "ab" * 16)
    outbox.cancel("b")
    connection.gate.set()

    assert outbox.drain(Deadline.after(5))
    assert connection.sent == [Cancel("first"), question("a", 1)]
    outbox.cancel("a")
    assert outbox.drain(Deadline.after(5))
    assert connection.sent[-1] == Cancel("a")


def test_where_the_line_is_free_a_small_message_goes_out_on_the_thread_that_brings_it(
    connection: FakeConnection, outbox: Outbox
) -> None:
    outbox.offer(Response("a", 200))
    assert connection.sent == [Response("a", 200)], "nobody had to be woken for it"


def test_what_cant_go_at_once_is_written_by_the_other_thread_before_anything_else(
    connection: FakeConnection, outbox: Outbox
) -> None:
    connection.gate.clear()
    assert outbox.offer(Response("a", 200))
    outbox.answer_ping(Ping(1))
    assert outbox.offer(Response("b", 200))
    assert not connection.sent
    connection.gate.set()

    assert outbox.drain(Deadline.after(5))
    assert connection.sent == [Response("a", 200), Pong(1), Response("b", 200)]


def test_many_threads_never_write_at_once(outbox: Outbox, connection: FakeConnection) -> None:
    together = threading.Barrier(8)

    def bring(name: str) -> None:
        together.wait(5)
        for number in range(50):
            outbox.put(Chunk(f"{name}-{number}", b"x" * number), Deadline.after(5))

    threads = [threading.Thread(target=bring, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert outbox.drain(Deadline.after(5))
    assert len(connection.sent) == 400
    assert not connection.num_overlapping
    for name in "01234567":
        mine = [int(chunk.request_id[2:]) for chunk in connection.sent if chunk.request_id.startswith(f"{name}-")]
        assert mine == list(range(50))


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
