"""What waits to be written to the relay: bounded in bytes, written by one thread.

An answer of the engine may not wait for the network, so `offer` says no when there is no room, and its caller answers
`busy` instead; the events of a chat may, so `put` waits.
"""

from __future__ import annotations

import threading
from collections import deque

from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from relay import envelope, wire

MAX_BYTES = 8 * 1024 * 1024
FRAME_BYTES = 256  # what a frame weighs beside its body
_SEND_DEADLINE_S = 600.0  # of one message; a connection that stalls ends long before (sockets.STALL_S)

Item = wire.Answer | bytes | None  # bytes: a pong of them; None: a ping


class Outbox:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._items: deque[tuple[Item, int]] = deque()
        self._changed = threading.Condition()
        self._num_bytes = 0
        self._is_closed = self._is_draining = False
        self._thread = threading.Thread(target=self._write, name="relay-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, item: Item) -> bool:
        """Takes it and never waits. False when there is no room, or nobody to send it to any more."""
        weight = _weight(item)
        with self._changed:
            if self._is_closed or self._num_bytes + weight > MAX_BYTES:
                return self._is_closed
            self._append(item, weight)
        return True

    def force(self, item: Item) -> None:
        """Takes a small one even where there is no room: an error that must be told, a pong."""
        with self._changed:
            if not self._is_closed:
                self._append(item, _weight(item))

    def put(self, item: Item, deadline: Deadline) -> None:
        """Waits for room. Raises ConnectionFailed when the connection ends, TimeoutError when the time does."""
        weight = _weight(item)
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self._is_closed or self._num_bytes + weight <= MAX_BYTES, deadline.left_s()
            )
            if self._is_closed:
                raise ConnectionFailed("the connection to the relay ended")
            if not has_room:
                raise TimeoutError("the relay takes nothing more")
            self._append(item, weight)

    def drain(self, deadline: Deadline) -> bool:
        """Waits until everything has been sent."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed or self._num_bytes == 0, deadline.left_s())

    def close(self) -> None:
        """Nothing more is sent; a writer in the middle of a frame ends with its connection."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _append(self, item: Item, weight: int) -> None:
        self._items.append((item, weight))
        self._num_bytes += weight
        self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or bool(self._items))
                if self._is_closed:
                    return
                item, weight = self._items.popleft()
            try:
                self._send(item)
            except ConnectionFailed:
                self.close()
                self._connection.shut_down()  # the reader hears of it
                return
            with self._changed:
                self._num_bytes -= weight
                self._changed.notify_all()

    def _send(self, item: Item) -> None:
        deadline = Deadline.after(_SEND_DEADLINE_S)
        match item:
            case None:
                self._connection.ping(deadline)
            case bytes():
                self._connection.pong(item)
            case _:
                self._connection.send(envelope.encode(item), deadline)


def _weight(item: Item) -> int:
    match item:
        case wire.Response():
            return FRAME_BYTES + 4 * len(item.body) // 3
        case wire.Chunk():
            return FRAME_BYTES + len(item.data)
        case _:
            return FRAME_BYTES
