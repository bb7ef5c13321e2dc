"""Which tokens may be drawn, and the draw: one that comes out the same when it is made again.

A draw is argmax(logits / T + g) over the kept tokens, with g = -log(-log(u)): Gumbel noise, so that the winner is
distributed as softmax says. u is a pure function of (seed, position, token id), never a generator that is advanced: a
replay, another node, another batch or a step of drafts draws the same token, and a small difference in the logits
changes the winner only where it nearly lost.

`scaled` is everywhere logits / T less the highest of them: 0 for the most probable token, below it for the others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64: state + i * golden, then mixed, is the i-th number of the stream
_MASK = 0xFFFFFFFFFFFFFFFF
_OFTEN_ENOUGH = 1024  # tokens that nearly always hold top_p: to sort them all takes milliseconds
_FAR = 5.0  # so far below the most probable token only those are looked at that have a lot of noise

Floats = np.ndarray[Any, np.dtype[np.float64]]
Indexes = np.ndarray[Any, np.dtype[Any]]
Integers = np.ndarray[Any, np.dtype[np.uint64]]


def draw(scaled: Floats, seed: int, position: int, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> int:
    """The id of the token at `position`, of those that top_k, then top_p, then min_p keep. top_k 0 keeps all."""
    ids = kept(scaled, top_k, top_p, min_p)
    values = scaled if len(ids) == len(scaled) else scaled[ids]
    uniforms = uniform(seed, position, ids)
    best = int(np.argmax(values))
    # A token that is _FAR off wins only with more noise than it takes to pass the most probable one.
    to_pass = _FAR + float(_noise(uniforms[best : best + 1])[0])
    hopeful = np.flatnonzero((values > -_FAR) | (uniforms > math.exp(-math.exp(-to_pass)) - 1e-9))
    return int(ids[hopeful[np.argmax(values[hopeful] + _noise(uniforms[hopeful]))]])


def kept(scaled: Floats, top_k: int, top_p: float, min_p: float) -> Integers:
    """Ids, ascending. Each of the filters sees what the one before it has left; the most probable token stays."""
    ids = np.arange(len(scaled), dtype=np.uint64)
    if top_k:
        ids = highest(scaled, top_k)
    if top_p < 1:
        ids = ids[nucleus(scaled[ids], top_p)]
    if min_p > 0:
        ids = ids[scaled[ids] >= math.log(min_p)]
    return ids


def highest(values: np.ndarray[Any, Any], count: int) -> Integers:
    """Indexes, ascending, of the `count` highest values; of equals the lower indexes."""
    if count >= len(values):
        return np.arange(len(values), dtype=np.uint64)
    least = np.partition(values, len(values) - count)[len(values) - count]
    above, equal = np.flatnonzero(values > least), np.flatnonzero(values == least)
    return np.sort(np.concatenate((above, equal[: count - len(above)]))).astype(np.uint64)


def nucleus(scaled: Floats, top_p: float) -> Integers:
    """Indexes, ascending, of the fewest most probable whose probabilities add up to top_p; at least one."""
    if top_p >= 1:
        return np.arange(len(scaled), dtype=np.uint64)
    probabilities = np.exp(scaled)
    probabilities /= probabilities.sum()
    # Tokens below this floor add up to less than 1 - top_p, so none is needed.
    candidates = np.flatnonzero(probabilities >= (1 - top_p) / len(scaled))
    order, sums = _sorted(probabilities, candidates[highest(probabilities[candidates], _OFTEN_ENOUGH)])
    if sums[-1] < top_p:
        order, sums = _sorted(probabilities, candidates)
    return np.sort(order[: int(np.searchsorted(sums, top_p)) + 1]).astype(np.uint64)


def _sorted(probabilities: Floats, indexes: Indexes) -> tuple[Indexes, Floats]:
    """(the indexes, most probable first, and the sums of their probabilities so far)"""
    order = indexes[np.argsort(-probabilities[indexes], kind="stable")]
    return order, np.cumsum(probabilities[order])


def gumbel(seed: int, position: int, token_ids: Integers) -> Floats:
    """Standard Gumbel noise of each token at a position."""
    return _noise(uniform(seed, position, token_ids))


def uniform(seed: int, position: int, token_ids: Integers) -> Floats:
    """A number between 0 and 1 for each token at a position: the top 53 bits of a counter-based generator."""
    key = _mix_one(_mix_one((seed & _MASK) + _GOLDEN & _MASK) ^ (position & _MASK))
    bits = token_ids + np.uint64(1)
    bits *= np.uint64(_GOLDEN)
    bits += np.uint64(key)
    _mix(bits)
    bits >>= np.uint64(11)
    numbers: Floats = bits.astype(np.float64)
    numbers += 0.5  # never 0; 1 only by rounding
    numbers *= 2.0**-53
    return np.minimum(numbers, 1 - 2.0**-53, out=numbers)


def _noise(uniforms: Floats) -> Floats:
    noise: Floats = -np.log(-np.log(uniforms))
    return noise


def _mix(z: Integers) -> None:
    """SplitMix64's output function (Steele, Lea, Flood 2014), in place."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)


def _mix_one(number: int) -> int:
    mixed = np.array([number], dtype=np.uint64)
    _mix(mixed)
    return int(mixed[0])
