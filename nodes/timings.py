"""What a session's steps took at each hop: percentiles of all its decode steps, and the last steps one by one.

A step at a hop is computing, waiting for the hop's engine, and the network: whatever else passes until its answer is
there. Noting a step is an append, since it happens for every token; sums are made of many at once, and when somebody
is told, which is at most each second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

NUM_LAST = 32  # steps that are told one by one
TELL_S = 1.0  # not sooner, while the session runs
LEAST_MS, MOST_MS = 0.001, 1e7  # what is told apart; less is told as nothing
NUM_AT_ONCE = 256  # steps that are noted before they are counted
_BUCKETS_PER_E = 24  # each 4 % wider than the one below: what is told is within 2.1 % of what it was
_NUM_BUCKETS = int(np.log(MOST_MS / LEAST_MS) * _BUCKETS_PER_E) + 2  # the first is of what is shorter than the least
_SHARES = {"p50": 0.5, "p95": 0.95}
KINDS = ("compute", "network", "queue")

Times = tuple[float, float, float]  # of one step at one hop, in ms: computing, network, queue


class Percentiles:
    """Of the decode steps at one hop, each kind of time on its own: how many steps fell into each bucket."""

    __slots__ = ("_counts", "_noted")

    def __init__(self) -> None:
        self._noted: list[Times] = []
        self._counts: np.ndarray | None = None  # [kind, bucket]

    def add(self, times: Times) -> None:
        self._noted.append(times)
        if len(self._noted) >= NUM_AT_ONCE:
            self._count()

    def as_dict(self) -> dict[str, float]:
        """`compute_p50_ms` and so on; empty before the first decode step."""
        if self._noted:
            self._count()
        if self._counts is None:
            return {}
        rows = zip(KINDS, self._counts, strict=True)
        return {f"{kind}_{name}_ms": _at(share, counts) for kind, counts in rows for name, share in _SHARES.items()}

    def _count(self) -> None:
        times = np.array(self._noted)  # [step, kind]
        self._noted.clear()
        buckets = (np.log(np.clip(times, LEAST_MS, MOST_MS) / LEAST_MS) * _BUCKETS_PER_E).astype(int) + 1
        buckets[times < LEAST_MS] = 0
        counts = np.stack([np.bincount(column, minlength=_NUM_BUCKETS) for column in buckets.T])
        self._counts = counts if self._counts is None else self._counts + counts


def _at(share: float, counts: np.ndarray) -> float:
    """So much of them took no longer than this, but for half a bucket."""
    sums = np.cumsum(counts)
    bucket = int(np.searchsorted(sums, share * sums[-1]))
    return round(float(LEAST_MS * np.exp((bucket - 0.5) / _BUCKETS_PER_E)), 3) if bucket else 0.0


@dataclass(slots=True)
class StepLog:
    """The last steps of a session, and when they were told. Used by one thread."""

    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _told_at: float = field(init=False)
    _last: deque[tuple[int, int, int, int, float, tuple[Times, ...]]] = field(
        default_factory=lambda: deque(maxlen=NUM_LAST), init=False
    )

    def __post_init__(self) -> None:
        self._began = self._told_at = self.clock()

    def add(
        self, number: int, epoch: int, position: int, num_tokens: int, started: float, hops: tuple[Times, ...]
    ) -> None:
        """`started`: by the log's clock; `hops`: in the order of the step's way."""
        self._last.append((number, epoch, position, num_tokens, started, hops))

    def is_due(self) -> bool:
        """There is something to tell, and the last time is a while ago: then this is the next one."""
        now = self.clock()
        if now - self._told_at < TELL_S or not self._last:
            return False
        self._told_at = now
        return True

    def as_list(self) -> list[dict[str, Any]]:
        """In order. `at_ms`: from the beginning of the session at its head to that of the step."""
        return [
            {
                "step": number,
                "epoch": epoch,
                "position": position,
                "tokens": num_tokens,
                "at_ms": round((started - self._began) * 1000, 1),
                "hops": [[round(ms, 2) for ms in times] for times in hops],
            }
            for number, epoch, position, num_tokens, started, hops in self._last
        ]
