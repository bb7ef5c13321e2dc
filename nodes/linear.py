"""The matrix products of a shard as objects, so that whoever calls them needn't know how the weights are kept."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from nodes.packed import Int4Linear, Int8Linear
from nodes.quantize import can_be_quantized


class Linear(Protocol):
    """x [tokens, in_features] to [tokens, out_features], both in the shard's dtype."""

    in_features: int
    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """[number of `numbers`, in_features]: those rows of the weights, for an embedding; `numbers` are integers."""
        ...


class DenseLinear:
    """Weights as they are on disk, in the shard's dtype. `weight`: [out_features, in_features]"""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.out_features, self.in_features = weight.shape
        # For a single token, torch's product of a bfloat16 matrix and a vector takes three quarters of the time of its
        # product of two matrices, which is no faster than in float32. The results are the same, bit for bit.
        self._has_fast_vector = weight.dtype == torch.bfloat16 and bias is None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._has_fast_vector and len(x) == 1:
            return torch.mv(self.weight, x[0]).unsqueeze(0)
        return functional.linear(x, self.weight, self.bias)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return functional.embedding(numbers, self.weight)


_KINDS: dict[str, type[Int8Linear] | type[Int4Linear]] = {"int8": Int8Linear, "int4": Int4Linear}
# How embedding and head are kept: their errors reach every token, and a 4-bit GGUF has them in eight bits as well.
TABLES = {"dense": "dense", "int8": "int8", "int4": "int8"}


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None, weights: str = "dense") -> Linear:
    """The product with `weight` [out_features, in_features], kept as `weights` says: dense, int8 or int4.

    Weights of a shape that the packed operators don't take stay dense.
    """
    if weights == "dense" or not can_be_quantized(weight):
        return DenseLinear(weight, bias)
    return _KINDS[weights](weight, bias)
