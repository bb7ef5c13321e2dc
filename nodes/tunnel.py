"""This node's own connection to the relay as a way to other nodes: many ask at once, answers are matched by id.

The bridge opens it with each connection that speaks version 2 of the wire, and closes it with that, which fails
everything that is still unanswered. Whoever asks waits for its own answer until its own deadline.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Mapping
from typing import Protocol

from nodes.connection import ConnectionFailed
from nodes.deadline import Deadline
from relay import wire
from relay.wire import Code

MAX_ASKED = wire.MAX_IN_FLIGHT_PER_CALLER  # the relay would refuse more

_Outcome = wire.Response | ConnectionFailed
_Slot = queue.SimpleQueue[_Outcome]


class Line(Protocol):
    """The sending end of a connection (nodes/outbox.py)."""

    def ask(self, request: wire.Request, to: str) -> bool:
        """False when there is no room for it. Raises ConnectionFailed, WireError."""

    def cancel(self, request_id: str) -> None: ...

    def settled(self, request_id: str) -> None: ...


class Tunnel:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._asked: dict[str, _Slot] = {}
        self._numbers = itertools.count(1)

    @property
    def is_open(self) -> bool:
        return self._line is not None

    @property
    def num_asked(self) -> int:
        return len(self._asked)

    def open(self, line: Line) -> None:
        with self._lock:
            self._line = line

    def close(self, cause: str) -> None:
        """Every question that is still open fails now."""
        with self._lock:
            self._line = None
            slots = list(self._asked.values())
            self._asked.clear()
        for slot in slots:
            slot.put(ConnectionFailed(cause))

    def hear(self, answer: wire.Response) -> bool:
        """Gives it to whoever asked. False when nobody did, or nobody waits any more."""
        with self._lock:
            slot = self._asked.pop(answer.request_id, None)
        if slot is None:
            return False
        slot.put(answer)
        return True

    def ask(
        self, to: str, method: str, target: str, headers: Mapping[str, str], body: bytes, deadline: Deadline
    ) -> wire.Response:
        """The peer's answer, or the relay's or ours about it. Raises TimeoutError, ConnectionFailed, WireError."""
        request_id, line, slot = self._slot()
        if slot is None:
            return _refused(f"{MAX_ASKED} questions of this node are open at the relay")
        deadline_ms = max(1, int(deadline.left_s() * 1000))
        request = wire.Request(request_id, method, target, headers, body, deadline_ms=deadline_ms)
        try:
            if not line.ask(request, to):
                return _refused("the relay has yet to take what this node has sent")
            outcome = _outcome(slot, deadline)
        except queue.Empty:
            line.cancel(request_id)
            raise TimeoutError("no answer within the deadline") from None
        finally:
            self._forget(request_id)
            line.settled(request_id)
        if isinstance(outcome, ConnectionFailed):
            raise outcome
        return outcome

    def _slot(self) -> tuple[str, Line, _Slot | None]:
        with self._lock:
            if self._line is None:
                raise ConnectionFailed("this node has no connection to the relay now")
            if len(self._asked) >= MAX_ASKED:
                return "", self._line, None
            request_id = f"ask-{next(self._numbers):x}"
            slot = self._asked[request_id] = _Slot()
            return request_id, self._line, slot

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._asked.pop(request_id, None)


def _outcome(slot: _Slot, deadline: Deadline) -> _Outcome:
    """Raises queue.Empty when the deadline is over."""
    while True:
        try:
            return slot.get(timeout=deadline.turn_s())
        except queue.Empty:
            if deadline.is_over:
                raise


def _refused(message: str) -> wire.Response:
    return wire.error_response("", Code.RATE_LIMITED, message)
