"""Which token comes next: the greedy one, or one drawn so that drawing again gives the same.

A draw is argmax(logits / T + g) over the tokens that top_p keeps, with g = -log(-log(u)): Gumbel noise, so that the
winner is distributed as softmax says. u is a pure function of (seed, position, token id), never a generator that is
advanced: a replay, another node or another batch draws the same token, and a small difference in the logits changes
the winner only where it nearly lost.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

MAX_TEMPERATURE = 2.0

_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64: state + i * golden, then mixed, is the i-th number of the stream
_MASK = 0xFFFFFFFFFFFFFFFF

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.uint64]]


class SamplingError(ValueError):
    """A parameter out of its range (the sender's to mend), or logits that aren't numbers."""


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose. temperature 0: the token with the highest logit."""

    temperature: float
    top_p: float
    seed: int

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise SamplingError(f"temperature must be a number from 0 to {MAX_TEMPERATURE:g}")
        if not _is_number(self.top_p) or not 0 <= self.top_p <= 1:
            raise SamplingError("top_p must be a number from 0 to 1")
        if type(self.seed) is not int or not -(2**63) <= self.seed < 2**63:
            raise SamplingError("seed must be a whole number of 64 bits")

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Sampling:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise SamplingError("sampling is not JSON") from None
        if not isinstance(fields, dict) or not set(fields) >= set(cls.__slots__):
            raise SamplingError(f"sampling must be an object with {', '.join(cls.__slots__)}")
        return cls(**{name: fields[name] for name in cls.__slots__})


GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=0)


def sample(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    """The id of the token at `position`. logits: [vocab_size], float32. Of equals, the lower id."""
    best = int(logits.argmax())  # the first of equals; a NaN, if there is one
    if not math.isfinite(float(logits[best])):
        raise SamplingError("the model's logits are not numbers")
    if sampling.temperature == 0:
        return best
    with np.errstate(over="ignore"):  # a tiny temperature: to minus infinity, which is never drawn
        scaled = (logits.numpy().astype(np.float64) - float(logits[best])) / sampling.temperature
    kept = nucleus(scaled, sampling.top_p)
    return int(kept[np.argmax(scaled[kept] + gumbel(sampling.seed, position, kept))])


def nucleus(scaled: Floats, top_p: float) -> Integers:
    """Ids, ascending, of the fewest most probable tokens whose probabilities add up to top_p; at least one."""
    if top_p >= 1:
        return np.arange(len(scaled), dtype=np.uint64)
    probabilities = np.exp(scaled)
    probabilities /= probabilities.sum()
    # Tokens below this floor add up to less than 1 - top_p, so none is needed; what is left is short to sort.
    candidates = np.flatnonzero(probabilities >= (1 - top_p) / len(scaled))
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
    count = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1
    return np.sort(order[:count]).astype(np.uint64)


def gumbel(seed: int, position: int, token_ids: Integers) -> Floats:
    """Standard Gumbel noise of each token at a position, from the top 53 bits of a counter-based generator."""
    key = _mix_one(_mix_one((seed & _MASK) + _GOLDEN & _MASK) ^ (position & _MASK))
    bits = _mix(np.uint64(key) + (token_ids + np.uint64(1)) * np.uint64(_GOLDEN))
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # never 0; 1 only by rounding
    noise: Floats = -np.log(-np.log(np.minimum(uniform, 1 - 2.0**-53)))
    return noise


def _mix(z: Integers) -> Integers:
    """SplitMix64's output function (Steele, Lea, Flood 2014)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _mix_one(number: int) -> int:
    return int(_mix(np.array([number], dtype=np.uint64))[0])
