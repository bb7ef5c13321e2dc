"""Whether the relay is still there, and how much of what was sent it has yet to take. Pure: the clock is handed in.

A PING goes out each period and after each MiB; its PONG says that everything before it has been read. What a connection
owes is what was sent after the last answered PING, and the bodies of requests that are still unanswered, each byte
counted once.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from relay.wire import PING_EACH_BYTES, STALL_PERIODS

LEAST_WAIT_PERIODS = 0.5  # for an answer, however late its PING could be written


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    num_sent: int


class Pulse:
    def __init__(self, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.period_s, self._clock = period_s, clock
        self._answered_at = self._pinged_at = clock()
        self._num_pings = self._num_sent = self._num_taken = 0
        self._pings: OrderedDict[int, _Mark] = OrderedDict()  # unanswered
        self._bodies: dict[str, tuple[int, int]] = {}  # of unanswered requests: (what was sent before, bytes)
        self._pinged_bytes = 0

    def ping_in_s(self) -> float:
        """Until a PING is due; 0 when it is."""
        if self._num_sent - self._pinged_bytes >= PING_EACH_BYTES:
            return 0.0
        return max(0.0, self._pinged_at + self.period_s - self._clock())

    def ping(self) -> int:
        """The number of the PING that is sent now."""
        self._num_pings += 1
        self._pinged_at, self._pinged_bytes = self._clock(), self._num_sent
        self._pings[self._num_pings] = _Mark(self._pinged_at, self._num_sent)
        return self._num_pings

    def pong(self, number: int) -> None:
        """An answer speaks for all that were sent before it; one to no open question says nothing."""
        if number not in self._pings:
            return
        self._answered_at = self._clock()
        while self._pings:
            first, mark = self._pings.popitem(last=False)
            self._num_taken = mark.num_sent
            if first == number:
                return

    def sent(self, num_bytes: int) -> None:
        self._num_sent += num_bytes

    def asked(self, request_id: str, num_bytes: int) -> None:
        """A request goes out next, with a body of so many bytes."""
        self._bodies[request_id] = (self._num_sent, num_bytes)

    def settled(self, request_id: str) -> None:
        """The request has its answer, or nobody waits for one."""
        self._bodies.pop(request_id, None)

    @property
    def owed_bytes(self) -> int:
        taken_but_unanswered = sum(size for start, size in self._bodies.values() if start < self._num_taken)
        return self._num_sent - self._num_taken + taken_but_unanswered

    @property
    def dies_at(self) -> float:
        """When the connection is over unless an answer comes; never while no PING is open."""
        if not self._pings:
            return math.inf
        oldest = next(iter(self._pings.values()))
        return max(self._answered_at + STALL_PERIODS * self.period_s, oldest.at + LEAST_WAIT_PERIODS * self.period_s)

    @property
    def is_dead(self) -> bool:
        return self._clock() >= self.dies_at
