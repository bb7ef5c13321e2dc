"""The matrix products of a shard as objects, so that whoever calls them needn't know how the weights are kept."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional


class Linear(Protocol):
    """x [tokens, in_features] to [tokens, out_features], both in the shard's dtype."""

    in_features: int
    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class DenseLinear:
    """Weights as they are on disk, in the shard's dtype. `weight`: [out_features, in_features]"""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.out_features, self.in_features = weight.shape

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None, weights: str = "dense") -> Linear:
    """The product with `weight` [out_features, in_features], kept as `weights` says: dense, int8 or int4."""
    if weights != "dense":
        raise ValueError(f"weights {weights!r} are of no known kind")
    return DenseLinear(weight, bias)
