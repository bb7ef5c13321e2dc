"""A point in time after which nobody waits any more. Every wait of a node is given one.

A request's deadline also ends with the wish for its answer: a client that leaves in the middle of a step mustn't leave
the head waiting for a slow node, and that node's caches full, until the time is over.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

LOOK_S = 0.2  # how often who waits looks whether the answer is still wanted


class DeadlineOver(Exception):
    """The time given to a request is used up."""


class Cancelled(Exception):
    """Nobody wants the answer any more."""


@dataclass(frozen=True, slots=True)
class Deadline:
    ends: float  # by time.monotonic()
    cancelled: threading.Event | None = field(default=None, compare=False)  # set: it is over already

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def unless(self, cancelled: threading.Event) -> Deadline:
        """This one, which is over as soon as that happens."""
        return Deadline(self.ends, cancelled)

    def left_s(self) -> float:
        return 0.0 if self.is_cancelled else max(0.0, self.ends - time.monotonic())

    def turn_s(self) -> float:
        """How long to wait before looking at it again."""
        return min(LOOK_S, self.left_s()) if self.cancelled else self.left_s()

    def pause(self, seconds: float) -> None:
        """Waits so long, or until it is over."""
        seconds = min(seconds, self.left_s())
        if self.cancelled:
            self.cancelled.wait(seconds)
        else:
            time.sleep(seconds)

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled is not None and self.cancelled.is_set()

    @property
    def is_over(self) -> bool:
        return self.is_cancelled or time.monotonic() >= self.ends

    def check(self) -> None:
        """Raises Cancelled, DeadlineOver."""
        if self.is_cancelled:
            raise Cancelled
        if self.is_over:
            raise DeadlineOver("the request's time is over")

    def at_most(self, seconds: float) -> Deadline:
        """This one, or one in `seconds` if that comes first."""
        return Deadline(min(self.ends, time.monotonic() + seconds), self.cancelled)
