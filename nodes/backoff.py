"""How long to wait before the next try: a random time below a bound that doubles ("full jitter").

Random from zero, so that a thousand nodes that lost one relay don't come back in one instant.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    def __init__(self, first_s: float, most_s: float, draw: Callable[[], float] = random.random) -> None:
        self._first_s, self._most_s, self._draw = first_s, most_s, draw
        self._num_failures = 0

    def next_s(self) -> float:
        bound: float = min(self._most_s, self._first_s * 2 ** min(self._num_failures, 32))
        self._num_failures += 1
        return self._draw() * bound

    def reset(self) -> None:
        self._num_failures = 0
