"""The matrix products of a shard as objects, so that whoever calls them needn't know how the weights are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch.nn import functional

from nodes.memory import give_back
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


class ReorderedLinear:
    """Dense bfloat16 weights in the order in which oneDNN multiplies them, which it else puts them into at every call.

    A third faster at a few tokens, and more at a chunk. In float32 it was no faster, and slower for a single token.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias = torch.ops.mkldnn._reorder_linear_weight(weight, _USUAL_TOKENS), bias

    @staticmethod
    def takes(weight: torch.Tensor) -> bool:
        return weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a product whose rows are asked for is a table")


_USUAL_TOKENS = 8  # the order depends little on it
_KINDS: dict[str, type[Int8Linear] | type[Int4Linear]] = {"int8": Int8Linear, "int4": Int4Linear}
# How embedding and head are kept: their errors reach every token, and a 4-bit GGUF has them in eight bits as well.
TABLES = {"dense": "dense", "int8": "int8", "int4": "int8"}


def keeps(weight: torch.Tensor, weights: str) -> bool:
    """Whether make_linear's product, of no table, goes on using `weight`'s own memory."""
    return _kind(weight, weights, is_table=False) is DenseLinear


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, weights: str = "dense", *, is_table: bool = False
) -> Linear:
    """The product with `weight` [out_features, in_features], kept as `weights` says: dense, int8 or int4.

    Weights of a shape that the packed operators don't take stay dense. `is_table`: an embedding or a head. These are
    never reordered: rows are asked of the one, and a head must be kept alike whether or not the embedding is with it.
    """
    product = _kind(weight, weights, is_table)(weight, bias)
    if isinstance(product, tuple(_KINDS.values())):
        give_back()  # the room of what was worked with: holes would add up to a second shard while one loads
    return product


def _kind(weight: torch.Tensor, weights: str, is_table: bool) -> Callable[[torch.Tensor, torch.Tensor | None], Linear]:
    if weights != "dense":
        return _KINDS[weights] if can_be_quantized(weight) else DenseLinear
    return ReorderedLinear if not is_table and ReorderedLinear.takes(weight) else DenseLinear
