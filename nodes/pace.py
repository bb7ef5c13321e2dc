"""How fast this machine works a layer: estimated before it has one, then as it was measured lately.

The estimate is a rough figure, for a site that chooses layers between machines: a token reads all of a layer's weights
once. As soon as there are layers the engine measures (Engine.measure_pace), when the machine may be busy with starting:
so that counts no more than the tokens after it, and is done again while nobody asks for any.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from nodes.activations import DTYPES
from nodes.linear import make_linear

MOST_ELEMENTS, LEAST_ELEMENTS = 16_000_000, 4_000_000  # of the matrix: more take time and room, fewer lie in caches
OPERATIONS = 100  # small ones in a layer, beside its large products
_TRIES = 8
LEAST_SHARE = 0.02  # of the newest token's time in the mean: what disturbs a few of them is no slower machine
OLD_S = 60.0  # for so long nothing was learnt
LOOKING_SHARE = 0.005  # of a machine's time that has nothing to work, at most


class LayerPace:
    """Milliseconds of one token through one layer, lately."""

    def __init__(self) -> None:
        self.ms: float | None = None
        self._num_seen = 0
        self._seen_at = -math.inf

    def measured(self, ms: float, now: float) -> None:
        """With nothing else to work: whatever was known before is over."""
        self.ms, self._num_seen, self._seen_at = ms, 1, now

    def worked(self, ms: float, now: float, *, is_alone: bool) -> None:
        """A step of a session. What was worked together takes longer than one token would: it shows only that this
        machine is faster than was thought."""
        if not is_alone and (self.ms is None or ms >= self.ms):
            return
        self._num_seen += 1
        share = max(LEAST_SHARE, 1 / self._num_seen)
        self.ms = ms if self.ms is None else self.ms + (ms - self.ms) * share
        self._seen_at = now

    def takes_look(self, now: float, costs_s: float) -> bool:
        """Whether to measure anew, which costs so much: seldom, so that hardly a chat has to wait for it, and after
        True not again soon."""
        if now - self._seen_at < max(OLD_S, costs_s / LOOKING_SHARE):
            return False
        self._seen_at = now
        return True


def estimate_ms_per_layer(width: int, layer_elements: int, dtype: str, weights: str) -> float:
    """Milliseconds of one token through a layer of so many numbers, on the threads that torch has now. Takes well
    under two seconds."""
    tried = min(MOST_ELEMENTS, max(LEAST_ELEMENTS, layer_elements))
    rows = max(1, tried // width)
    with torch.inference_mode():
        product = make_linear(torch.full((rows, width), 0.01, dtype=DTYPES[dtype]), None, weights)
        token, small = torch.ones(1, width, dtype=DTYPES[dtype]), torch.ones(1, 64)
        read_s = _best_s(lambda: product(token))
        operation_s = _best_s(lambda: small + small)
    return 1000 * (read_s * layer_elements / (rows * width) + OPERATIONS * operation_s)


def _best_s(work: Callable[[], object]) -> float:
    """A machine that is busy with starting isn't measured by what else it does."""
    took_s = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - started)
    return min(took_s)
