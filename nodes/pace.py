"""How fast this machine will work a layer, before it has one: a token reads all of a layer's weights once.

A rough figure, for a site that chooses layers between machines. The one that the engine measures takes its place as
soon as there are layers (Engine.measure_pace).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from nodes.activations import DTYPES
from nodes.linear import make_linear

MOST_ELEMENTS, LEAST_ELEMENTS = 32_000_000, 4_000_000  # of the matrix: more would take long, fewer lie in caches
OPERATIONS = 100  # small ones in a layer, beside its large products
_TRIES = 5


def estimate_ms_per_layer(width: int, layer_elements: int, dtype: str, weights: str) -> float:
    """Milliseconds of one token through a layer of so many numbers, on the threads that torch has now. Takes well
    under two seconds."""
    tried = min(MOST_ELEMENTS, max(LEAST_ELEMENTS, layer_elements))
    rows = max(1, tried // width)
    with torch.inference_mode():
        product = make_linear(torch.full((rows, width), 0.01, dtype=DTYPES[dtype]), None, weights)
        token, small = torch.ones(1, width, dtype=DTYPES[dtype]), torch.ones(1, 64)
        read_s = _median_s(lambda: product(token))
        operation_s = _median_s(lambda: small + small)
    return 1000 * (read_s * layer_elements / (rows * width) + OPERATIONS * operation_s)


def _median_s(work: Callable[[], object]) -> float:
    took_s = []
    for _ in range(1 + _TRIES):
        started = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - started)
    return statistics.median(took_s[1:])  # the first finds everything cold
