"""How fast this machine will work a layer, before it has one: a token reads all of a layer's weights once.

A rough figure, for a site that chooses layers between machines. The one that the engine measures takes its place as
soon as there are layers (Engine.measure_pace).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from nodes.activations import DTYPES
from nodes.linear import make_linear

MOST_ELEMENTS, LEAST_ELEMENTS = 16_000_000, 4_000_000  # of the matrix: more take time and room, fewer lie in caches
OPERATIONS = 100  # small ones in a layer, beside its large products
_TRIES = 8


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
