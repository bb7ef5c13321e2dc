"""Whether a node that failed may be used again. Pure: rows and the clock are handed in.

    closed      it works, as far as anybody knows
    open        it failed: no session goes through it until a moment that is twice as far away each time in a row
    half-open   that moment has passed: one session at a time may try it, or the site asks how it is

It opens when the site itself saw the node fail, or when two owners of other nodes did. A node that says it is well is
used again, but only a session that it carried to its end makes the site forget how often it failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

FIRST = timedelta(seconds=10)
LONGEST = timedelta(minutes=5)
ACCUSED_WITHIN = timedelta(minutes=5)
MIN_OWNERS = 2  # one alone could keep a rival's node from working

# What a head may say of a hop that is a fault of the node's. `busy`, `draining`, `missing` and `move` are none.
FAULTS = frozenset({"node_failed", "internal"})
# Why the site asks a node how it is. A chat with little time says nothing of a node that was too slow for it.
SUSPICIONS = FAULTS | {"deadline"}


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Breaker:
    until: datetime | None = None
    openings: int = 0  # in a row
    reason: str = ""

    def state(self, now: datetime) -> State:
        if self.until is None:
            return State.CLOSED
        return State.OPEN if self.until > now else State.HALF_OPEN

    def opened(self, now: datetime, reason: str) -> Breaker:
        """What failed while it is open was under way already, and says nothing new."""
        if self.state(now) == State.OPEN:
            return self
        left_out = min(FIRST * 2 ** min(self.openings, 10), LONGEST)
        return Breaker(now + left_out, self.openings + 1, reason)

    def closed(self) -> Breaker:
        """It answers: it may work, and the next failure counts in the same row."""
        return replace(self, until=None, reason="")


def is_accused_enough(owners: Iterable[int | None]) -> bool:
    """`owners` of the nodes that accused it lately, each by the join token that it joined with; None: by one that was
    deleted."""
    return len(set(owners)) >= MIN_OWNERS
