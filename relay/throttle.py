"""Slows an address that keeps offering bad credentials. The clock is handed in. Safe from any thread."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from threading import Lock

FREE_FAILURES = 5
FORGIVEN_EACH_S = 10.0  # one failure is forgotten after each
FIRST_WAIT_S = 0.25  # doubled with each further failure
MAX_WAIT_S = 3.0  # below the time a socket has to register: the owner of a good key behind the same address gets in
MAX_ADDRESSES = 4096


class Throttle:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[float, float]] = {}  # whose -> (failures, when they were counted)
        self._lock = Lock()

    def failed(self, address: str) -> None:
        whose = owner(address)
        with self._lock:
            count = self._count(whose) + 1
            self._failures.pop(whose, None)  # to the end: the first one is the one longest quiet
            self._failures[whose] = count, self._clock()
            if len(self._failures) > MAX_ADDRESSES:
                del self._failures[next(iter(self._failures))]

    def wait_s(self, address: str) -> float:
        """How long the next attempt from there has to wait, counted from when it comes."""
        return _wait_s(self._count(owner(address)))

    def left_s(self, address: str) -> float:
        """How long the next attempt from there has to wait, counted from the last failure."""
        count, failed_at = self._failures.get(owner(address), (0.0, 0.0))
        return max(0.0, failed_at + _wait_s(count) - self._clock())

    def _count(self, whose: str) -> float:
        count, counted_at = self._failures.get(whose, (0.0, 0.0))
        return float(max(0.0, count - (self._clock() - counted_at) / FORGIVEN_EACH_S))


def _wait_s(count: float) -> float:
    if count < FREE_FAILURES:
        return 0.0
    return float(min(FIRST_WAIT_S * 2 ** (count - FREE_FAILURES), MAX_WAIT_S))


def owner(address: str) -> str:
    """Who stands behind an address: of IPv6 the network of 64 bits, which one household has to itself."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
