"""What waits to be written to the relay: bounded in bytes, in order, by one thread at a time.

Whoever finds the line free writes a small message itself, as far as that goes without waiting: to wake another thread
for it would take a tenth of a hop's time. Everything else, and what is left over, is written by a thread of its own,
which also sends the PINGs.

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
from nodes.framing import Outgoing
from nodes.pulse import Pulse
from relay import codec, wire
from relay.wire import Cancel, Chunk, Frame, Ping, Pong, Request, Response

MAX_BYTES = wire.MAX_BYTES_IN_FLIGHT
SMALL_BYTES = 64 * wire.KIB
FRAME_BYTES = 256  # what a frame weighs beside its body
_SEND_DEADLINE_S = 600.0  # of one message; a connection that stalls ends long before (sockets.STALL_S)


@dataclass(frozen=True, slots=True)
class _Question:
    """A request to another node, as it travels."""

    request: Request
    message: Outgoing


Item = Frame | _Question | Outgoing


class Outbox:
    def __init__(self, connection: Connection, dialect: Dialect, pulse: Pulse) -> None:
        self._connection, self._dialect, self._pulse = connection, dialect, pulse
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)  # something waits to be written
        self._room = threading.Condition(self._lock)  # something has been
        self._items: deque[tuple[Item, int]] = deque()
        self._urgent: deque[Item] = deque()  # signs of life: written first
        self._rest = b""  # of a message that went out in part
        self._num_bytes = 0
        self._is_writing = self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="relay-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, frame: Frame) -> bool:
        """Takes it and never waits. False when there is no room."""
        weight = _weight(frame)
        with self._lock:
            if self._is_closed:
                return True  # nobody is there to be told anything
            if self._num_bytes + weight > MAX_BYTES:
                return False
            is_ours = self._add(frame, weight)
        if is_ours:
            self._write_now(frame, weight)
        return True

    def force(self, frame: Frame) -> None:
        """Takes a small one even where there is no room: an error that must be told."""
        with self._lock:
            if not self._is_closed:
                self._append(frame, _weight(frame))

    def answer_ping(self, ping: Ping | bytes) -> None:
        """A sign of life doesn't wait behind bodies. `ping`: a frame, or what a WebSocket's own ping carried."""
        with self._lock:
            self._urgent.append(Pong(ping.n) if isinstance(ping, Ping) else Outgoing.pong(ping))
            self._work.notify()

    def put(self, frame: Frame, deadline: Deadline) -> None:
        """Waits for room. Raises ConnectionFailed when the connection ends, TimeoutError when the time does."""
        weight = _weight(frame)
        with self._lock:
            has_room = self._room.wait_for(lambda: self._is_closed or self._takes(weight), deadline.left_s())
            self._check_open()
            if not has_room:
                raise TimeoutError("the relay takes nothing more")
            is_ours = self._add(frame, weight)
        if is_ours:
            self._write_now(frame, weight)

    def ask(self, request: Request, to: str) -> bool:
        """Puts a question to another node; False when there is no room. Raises ConnectionFailed, WireError."""
        message = Outgoing.of(codec.encode_frame(request, to))
        question, weight = _Question(request, message), len(message.payload)
        with self._lock:
            self._check_open()
            if not self._takes(weight):
                return False
            is_ours = self._add(question, weight)
        if is_ours:
            self._write_now(question, weight)
        return True

    def cancel(self, request_id: str) -> None:
        """Nobody waits for this question's answer any more: it isn't sent, or its peer is told."""
        with self._lock:
            for entry in self._items:
                if isinstance(entry[0], _Question) and entry[0].request.request_id == request_id:
                    self._items.remove(entry)
                    self._num_bytes -= entry[1]
                    return
        self.force(Cancel(request_id))

    def settled(self, request_id: str) -> None:
        with self._lock:
            self._pulse.settled(request_id)
            self._room.notify_all()

    def heard_pong(self, number: int) -> None:
        with self._lock:
            self._pulse.pong(number)
            self._room.notify_all()

    def is_dead(self) -> bool:
        """Whether the relay has left a PING unanswered for too long."""
        with self._lock:
            return self._pulse.is_dead

    @property
    def is_empty(self) -> bool:
        return self._num_bytes == 0

    def drain(self, deadline: Deadline) -> bool:
        """Waits until everything has been sent."""
        with self._lock:
            return self._room.wait_for(lambda: self._is_closed or self.is_empty, deadline.left_s())

    def close(self) -> None:
        """Nothing more is sent; a writer in the middle of a frame ends with its connection."""
        with self._lock:
            self._is_closed = True
            self._items.clear()
            self._work.notify_all()
            self._room.notify_all()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionFailed("the connection to the relay ended")

    def _takes(self, weight: int) -> bool:
        return self._num_bytes + self._pulse.owed_bytes + weight <= MAX_BYTES

    def _add(self, item: Item, weight: int) -> bool:
        """Whether the caller shall write it itself, now: the line is its until `_write_now` has ended."""
        is_busy = self._is_writing or self._items or self._urgent or self._rest or not self._pulse.ping_in_s()
        if is_busy or weight > SMALL_BYTES:
            self._append(item, weight)
            return False
        self._is_writing = True
        self._num_bytes += weight
        self._mark(item)
        return True

    def _append(self, item: Item, weight: int) -> None:
        self._items.append((item, weight))
        self._num_bytes += weight
        self._work.notify()

    def _write_now(self, item: Item, weight: int) -> None:
        try:
            num_bytes, rest = self._connection.send_now(self._outgoing(item))
        except ConnectionFailed:
            return self._fail()
        with self._lock:
            self._rest = rest
            self._wrote(num_bytes, weight - len(rest))

    def _write(self) -> None:
        while (found := self._next()) is not None:
            item, weight = found
            deadline = Deadline.after(_SEND_DEADLINE_S)
            try:
                if isinstance(item, bytes):
                    self._connection.send_rest(item, deadline)
                    num_bytes = 0
                else:
                    num_bytes = self._connection.send_message(self._outgoing(item), deadline)
            except ConnectionFailed:
                return self._fail()
            with self._lock:
                self._wrote(num_bytes, weight)

    def _next(self) -> tuple[Item | bytes, int] | None:
        """What is to be written now, waited for; None at the end."""
        with self._lock:
            while not self._is_closed:
                wait_s = self._pulse.ping_in_s()
                found = None if self._is_writing else self._first(is_ping_due=not wait_s)
                if found:
                    self._is_writing = True
                    return found
                self._work.wait(wait_s or None)
        return None

    def _first(self, *, is_ping_due: bool) -> tuple[Item | bytes, int] | None:
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest, len(rest)
        if self._urgent:
            return self._urgent.popleft(), 0
        if is_ping_due:
            return Ping(self._pulse.ping()), 0
        if not self._items:
            return None
        item, weight = self._items.popleft()
        self._mark(item)
        return item, weight

    def _mark(self, item: Item) -> None:
        """Before it goes, since a question's answer may come at once."""
        if isinstance(item, _Question):
            self._pulse.asked(item.request.request_id, len(item.request.body))

    def _wrote(self, num_bytes: int, weight: int) -> None:
        self._is_writing = False
        self._num_bytes -= weight
        self._pulse.sent(num_bytes)
        self._room.notify_all()
        if self._rest or self._urgent or self._items or not self._pulse.ping_in_s():
            self._work.notify()

    def _outgoing(self, item: Item) -> Outgoing:
        match item:
            case Outgoing():
                return item
            case _Question():
                return item.message
            case _:
                return self._dialect.encode(item)

    def _fail(self) -> None:
        self.close()
        self._connection.shut_down()  # the reader hears of it


def _weight(frame: Frame) -> int:
    match frame:
        case Response():
            return FRAME_BYTES + 4 * len(frame.body) // 3
        case Chunk():
            return FRAME_BYTES + len(frame.data)
        case _:
            return FRAME_BYTES
