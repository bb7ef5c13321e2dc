"""What happened in this process, counted; one word for each outcome, the same in code, logs and figures.

Standard library only. Written and read on the event loop's thread; relay/prometheus.py shows it at /metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Sequence
from typing import TypeVar

Number = TypeVar("Number", int, float)

MAX_PEERS = 4096  # of which something is remembered by name
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
sockets: Counter[str] = Counter()  # "registered", "replaced", "refused", "overflowed"
refusals: Counter[str] = Counter()  # sockets that were turned away, by the error code they were told
open_sockets: Counter[int] = Counter()  # now, by the wire version they speak
bytes_by_direction: Counter[str] = Counter()  # of messages on sockets: "in" and "out"
request_s = Histogram(LONG_S)  # from a request's coming to its end
queue_s = Histogram(SHORT_S)  # a message waited for its turn on a socket
loop_lag_s = Histogram(SHORT_S)  # the event loop came back to a timer this much too late
rtts: dict[str, float] = {}  # the last ping's answer took, by peer_id
replacements: dict[str, int] = {}  # how often a newer registration of the same peer_id took over


def connected(version: int) -> None:
    open_sockets[version] += 1


def disconnected(version: int) -> None:
    open_sockets[version] -= 1


def refused(code: str) -> None:
    sockets["refused"] += 1
    refusals[code] += 1


def replaced(peer_id: str) -> None:
    sockets["replaced"] += 1
    _remember(replacements, peer_id, replacements.get(peer_id, 0) + 1)


def request_ended(outcome: str, seconds: float) -> None:
    outcomes[outcome] += 1
    request_s.add(seconds)


def dropped(reason: str) -> None:
    drops[reason] += 1


def bytes_passed(direction: str, num_bytes: int) -> None:
    bytes_by_direction[direction] += num_bytes


def queued(seconds: float) -> None:
    queue_s.add(seconds)


def rtt(peer_id: str, seconds: float) -> None:
    _remember(rtts, peer_id, seconds)


def rtts_of(present: Container[str]) -> dict[str, float]:
    """Of the peers that are here; the others are forgotten."""
    for peer_id in [peer_id for peer_id in rtts if peer_id not in present]:
        del rtts[peer_id]
    return dict(rtts)


def lagged(seconds: float) -> None:
    loop_lag_s.add(seconds)


def _remember(numbers: dict[str, Number], peer_id: str, number: Number) -> None:
    """The peer heard of longest ago makes room."""
    numbers.pop(peer_id, None)
    numbers[peer_id] = number
    if len(numbers) > MAX_PEERS:
        del numbers[next(iter(numbers))]
