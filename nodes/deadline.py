"""A point in time after which nobody waits any more. Every wait of a node is given one."""

from __future__ import annotations

import time
from dataclasses import dataclass


class DeadlineOver(Exception):
    """The time given to a request is used up."""


@dataclass(frozen=True, slots=True)
class Deadline:
    ends: float  # by time.monotonic()

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def left_s(self) -> float:
        return max(0.0, self.ends - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends

    def check(self) -> None:
        if self.is_over:
            raise DeadlineOver("the request's time is over")

    def at_most(self, seconds: float) -> Deadline:
        """This one, or one in `seconds` if that comes first."""
        return Deadline(min(self.ends, time.monotonic() + seconds))
