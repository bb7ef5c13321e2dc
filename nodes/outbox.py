"""What waits to be written to the relay: bounded in bytes, written by one thread, which also sends the PINGs.

An answer of the engine may not wait for the network, so `offer` says no when there is no room, and its caller answers
`busy` instead; the events of a chat may, so `put` waits; a question to another node is refused at once. The last two
also have to wait, or are refused, while the relay has yet to take what was sent (nodes/pulse.py).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.dialects import Dialect
from nodes.pulse import Pulse
from relay import wire
from relay.wire import Cancel, Chunk, Frame, Ping, Request, Response

MAX_BYTES = wire.MAX_BYTES_IN_FLIGHT
FRAME_BYTES = 256  # what a frame weighs beside its body
_SEND_DEADLINE_S = 600.0  # of one message; a connection that stalls ends long before (sockets.STALL_S)


@dataclass(frozen=True, slots=True)
class _Question:
    """A request to another node, as it travels."""

    request: Request
    message: bytes


Item = Frame | _Question | bytes  # bytes: what a WebSocket's own ping carried, to be sent back


class Outbox:
    def __init__(self, connection: Connection, dialect: Dialect, pulse: Pulse) -> None:
        self._connection, self._dialect, self._pulse = connection, dialect, pulse
        self._items: deque[tuple[Item, int]] = deque()
        self._urgent: deque[Item] = deque()  # signs of life: written first
        self._changed = threading.Condition()
        self._num_bytes = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="relay-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, item: Frame) -> bool:
        """Takes it and never waits. False when there is no room."""
        weight = _weight(item)
        with self._changed:
            if self._is_closed:
                return True  # nobody is there to be told anything
            if self._num_bytes + weight > MAX_BYTES:
                return False
            self._append(item, weight)
        return True

    def force(self, item: Frame) -> None:
        """Takes a small one even where there is no room: an error that must be told."""
        with self._changed:
            if not self._is_closed:
                self._append(item, _weight(item))

    def answer_ping(self, ping: Ping | bytes) -> None:
        """A sign of life doesn't wait behind bodies."""
        with self._changed:
            self._urgent.append(wire.Pong(ping.n) if isinstance(ping, Ping) else ping)
            self._changed.notify_all()

    def put(self, item: Frame, deadline: Deadline) -> None:
        """Waits for room. Raises ConnectionFailed when the connection ends, TimeoutError when the time does."""
        weight = _weight(item)
        with self._changed:
            has_room = self._changed.wait_for(lambda: self._is_closed or self._takes(weight), deadline.left_s())
            if self._is_closed:
                raise ConnectionFailed("the connection to the relay ended")
            if not has_room:
                raise TimeoutError("the relay takes nothing more")
            self._append(item, weight)

    def ask(self, request: Request, to: str) -> bool:
        """Puts a question to another node; False when there is no room. Raises ConnectionFailed, WireError."""
        question = _Question(request, wire.encode_frame(request, to))
        with self._changed:
            if self._is_closed:
                raise ConnectionFailed("the connection to the relay ended")
            if not self._takes(len(question.message)):
                return False
            self._append(question, len(question.message))
        return True

    def cancel(self, request_id: str) -> None:
        """Nobody waits for this question's answer any more: it isn't sent, or its peer is told."""
        with self._changed:
            for entry in self._items:
                if isinstance(entry[0], _Question) and entry[0].request.request_id == request_id:
                    self._items.remove(entry)
                    self._num_bytes -= entry[1]
                    return
        self.force(Cancel(request_id))

    def settled(self, request_id: str) -> None:
        with self._changed:
            self._pulse.settled(request_id)
            self._changed.notify_all()

    def heard_pong(self, number: int) -> None:
        with self._changed:
            self._pulse.pong(number)
            self._changed.notify_all()

    def is_dead(self) -> bool:
        """Whether the relay has left a PING unanswered for too long."""
        with self._changed:
            return self._pulse.is_dead

    @property
    def is_empty(self) -> bool:
        return self._num_bytes == 0

    def drain(self, deadline: Deadline) -> bool:
        """Waits until everything has been sent."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed or self.is_empty, deadline.left_s())

    def close(self) -> None:
        """Nothing more is sent; a writer in the middle of a frame ends with its connection."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _takes(self, weight: int) -> bool:
        return self._num_bytes + self._pulse.owed_bytes + weight <= MAX_BYTES

    def _append(self, item: Item, weight: int) -> None:
        self._items.append((item, weight))
        self._num_bytes += weight
        self._changed.notify_all()

    def _write(self) -> None:
        while (found := self._next()) is not None:
            item, weight = found
            try:
                num_bytes = self._send(item)
            except ConnectionFailed:
                self.close()
                self._connection.shut_down()  # the reader hears of it
                return
            with self._changed:
                self._num_bytes -= weight
                self._pulse.sent(num_bytes)
                self._changed.notify_all()

    def _next(self) -> tuple[Item, int] | None:
        """What is to be written now, waited for; None at the end."""
        with self._changed:
            while not self._is_closed:
                if self._urgent:
                    return self._urgent.popleft(), 0
                wait_s = self._pulse.ping_in_s()
                if not wait_s:
                    return Ping(self._pulse.ping()), 0
                if self._items:
                    item, weight = self._items.popleft()
                    if isinstance(item, _Question):  # before it goes, since its answer may come at once
                        self._pulse.asked(item.request.request_id, len(item.request.body))
                    return item, weight
                self._changed.wait(wait_s)
        return None

    def _send(self, item: Item) -> int:
        deadline = Deadline.after(_SEND_DEADLINE_S)
        if isinstance(item, bytes):
            self._connection.pong(item)
            return 0
        if isinstance(item, _Question):
            self._connection.send(item.message, deadline)
            return len(item.message)
        return self._dialect.write(self._connection, item, deadline)


def _weight(item: Frame) -> int:
    match item:
        case Response():
            return FRAME_BYTES + 4 * len(item.body) // 3
        case Chunk():
            return FRAME_BYTES + len(item.data)
        case _:
            return FRAME_BYTES
