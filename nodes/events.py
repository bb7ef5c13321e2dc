"""The head's event stream: what one thread generates and another sends, with a comment each second in between.

It is bounded: who generates waits for who sends. The comment keeps a client that has gone from going unnoticed.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.deadline import Cancelled as Cancelled  # what whoever sends events knows it by
from nodes.deadline import Deadline, DeadlineOver
from relay import wire

KEEPALIVE_S = 1.0
KEEPALIVE = b": keepalive\n\n"
DONE = b"data: [DONE]\n\n"
MAX_WAITING = 1024


class EventStream:
    """Iterated by the sender; `close` by anyone ends it."""

    def __init__(self, keepalive_s: float = KEEPALIVE_S) -> None:
        self._keepalive_s = keepalive_s
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_finished = False
        self.cancelled = threading.Event()

    def send(self, event: dict[str, Any], deadline: Deadline) -> None:
        """Raises Cancelled, or DeadlineOver when the sender takes nothing any more."""
        data = _encoded(event)
        with self._changed:
            self._changed.wait_for(lambda: self.is_cancelled or len(self._waiting) < MAX_WAITING, deadline.left_s())
            self.check()
            if len(self._waiting) >= MAX_WAITING:
                raise DeadlineOver("the client took nothing of its answer")
            self._waiting.append(data)
            self._changed.notify_all()

    def finish(self, *events: dict[str, Any]) -> None:
        """The last events, for which there is always room, and the end."""
        with self._changed:
            self._waiting.extend(map(_encoded, events))
            self._waiting.append(DONE)
            self._is_finished = True
            self._changed.notify_all()

    def cancel(self) -> None:
        with self._changed:
            self.cancelled.set()
            self._changed.notify_all()

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled.is_set()

    def check(self) -> None:
        if self.is_cancelled:
            raise Cancelled

    def __iter__(self) -> Iterator[bytes]:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._has_news, self._keepalive_s)
                    if self.is_cancelled or (self._is_finished and not self._waiting):
                        return
                    batch = b"".join(self._waiting) or KEEPALIVE
                    self._waiting.clear()
                    self._changed.notify_all()
                yield batch
        finally:
            self.cancel()  # also when the sender gives up in the middle

    def _has_news(self) -> bool:
        return bool(self._waiting) or self._is_finished or self.is_cancelled


def _encoded(event: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """An answer whose body comes bit by bit. Who sends it iterates `events` to the end or cancels them."""

    request_id: str
    events: EventStream
    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"content-type": "text/event-stream", "cache-control": "no-store"}
    )

    def cancel(self) -> None:
        self.events.cancel()


Answer = wire.Response | StreamAnswer
