"""Slows an address that keeps offering bad credentials. The clock is handed in."""

from __future__ import annotations

from collections.abc import Callable

FREE_FAILURES = 5
FORGIVEN_EACH_S = 10.0  # one failure is forgotten after each
FIRST_WAIT_S = 0.25  # doubled with each further failure
MAX_WAIT_S = 3.0  # below the time a socket has to register: the owner of a good key behind the same address gets in
MAX_ADDRESSES = 4096


class Throttle:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[float, float]] = {}  # address -> (failures, when they were counted)

    def failed(self, address: str) -> None:
        count = self._count(address) + 1
        self._failures.pop(address, None)  # to the end: the first one is the one longest quiet
        self._failures[address] = count, self._clock()
        if len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]

    def wait_s(self, address: str) -> float:
        """How long the next attempt from there has to wait."""
        count = self._count(address)
        if count < FREE_FAILURES:
            return 0.0
        return float(min(FIRST_WAIT_S * 2 ** (count - FREE_FAILURES), MAX_WAIT_S))

    def _count(self, address: str) -> float:
        count, counted_at = self._failures.get(address, (0.0, 0.0))
        return float(max(0.0, count - (self._clock() - counted_at) / FORGIVEN_EACH_S))
