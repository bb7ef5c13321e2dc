"""What happened in this process, counted; one word for each outcome, the same in code, logs and figures.

Standard library only. Written and read on the event loop's thread; relay/prometheus.py shows it at /metrics. What
belongs to one connection (bytes, round trip, replacements) stands in its Link.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

LAG_PERIOD_S = 0.5  # between two looks at the event loop

SHORT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LONG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Histogram:
    """Durations in seconds, counted by the first bound that each doesn't exceed; the last count is of those above."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


outcomes: Counter[str] = Counter()  # how requests ended: "answered", "cancelled", or the relay's error code
drops: Counter[str] = Counter()  # messages that were thrown away: "unmatched" answers, "malformed" ones
sockets: Counter[str] = Counter()  # "registered", "replaced", "overflowed"
refusals: Counter[str] = Counter()  # sockets that were turned away, by the error code they were told
open_sockets: Counter[int] = Counter()  # now, by the wire version they speak
num_bytes: Counter[str] = Counter()  # of messages on sockets: "in" and "out"
request_s = Histogram(LONG_S)  # from a request's being passed on to its end
queue_s = Histogram(SHORT_S)  # a message waited for its turn on its socket
loop_lag_s = Histogram(SHORT_S)  # the event loop came back to a timer this much too late
