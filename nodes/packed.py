"""Matrix products with quantized weights, and the rows of an embedding that is kept in the same form.

A few tokens go through torch's packed operators, which read each weight in its fewer bits and give every row the same
numbers whatever other rows there are. They work through the weights anew for every four tokens, so many tokens get the
weights unpacked once, a part at a time, into room that all products of a thread share. Four bits take longer to unpack
than to multiply: where memory allows, the dense weights are kept beside them for prompts (`keeping_dense`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch.nn import functional

from nodes import quantize
from nodes.quantize import Error

MANY_TOKENS = 24  # from here on dense weights, and unpacking eight bits, were measured to be faster
_MANY_FOR_INT4 = 96  # from here on unpacking four bits was
_ROOM_ELEMENTS = 1 << 21  # of the part that is unpacked at once: four MB, about a core's own cache

_keeps_dense: ContextVar[bool] = ContextVar("dense weights are kept beside int4", default=False)
_errors: ContextVar[Error | None] = ContextVar("errors of what is quantized", default=None)


class _Room(threading.local):
    """Memory to unpack into; a thread's products run one after another."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0, dtype=torch.bfloat16)

    def take(self, rows: int, columns: int) -> torch.Tensor:
        if rows * columns > len(self._numbers):
            self._numbers = torch.empty(rows * columns, dtype=torch.bfloat16)
        return self._numbers[: rows * columns].view(rows, columns)


_room = _Room()


class Int8Linear:
    """x [tokens, in_features] to [tokens, out_features] through weights of eight bits."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._matrix = quantize.to_int8(weight)
        _tell(self._matrix.error)
        (self.out_features, self.in_features), self.bias = weight.shape, bias

    @property
    def num_bytes(self) -> int:
        return _num_bytes(self._matrix.values, self._matrix.scales)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        narrow, matrix = x.to(torch.bfloat16), self._matrix
        if len(x) < MANY_TOKENS:
            product = torch._weight_int8pack_mm(narrow, matrix.values, matrix.scales)
        else:
            product = self._unpacked(narrow).mul_(matrix.scales)
        return _finish(product, self.bias, x.dtype)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return quantize.int8_rows(self._matrix, numbers)

    def _unpacked(self, x: torch.Tensor) -> torch.Tensor:
        """Without the scales: whole numbers up to 127 are exact in bfloat16."""
        product = x.new_empty(len(x), self.out_features)
        step = max(1, _ROOM_ELEMENTS // self.in_features)
        for start in range(0, self.out_features, step):
            values = self._matrix.values[start : start + step]
            room = _room.take(len(values), self.in_features)
            product[:, start : start + step] = functional.linear(x, room.copy_(values))
        return product


class Int4Linear:
    """x [tokens, in_features] to [tokens, out_features] through weights of four bits."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._matrix = quantize.to_int4(weight)
        _tell(self._matrix.error)
        (self.out_features, self.in_features), self.bias = weight.shape, bias
        self._dense = weight.to(torch.bfloat16) if _keeps_dense.get() else None
        self._packed = self._matrix.packed.view(-1, self.in_features // 2)  # as the operator wants it

    @property
    def num_bytes(self) -> int:
        dense = [] if self._dense is None else [self._dense]
        return _num_bytes(self._matrix.packed, self._matrix.scales_and_zeros, *dense)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        narrow = x.to(torch.bfloat16)
        if self._dense is not None and len(x) >= MANY_TOKENS:
            product = functional.linear(narrow, self._dense)
        elif len(x) < _MANY_FOR_INT4:
            product = torch._weight_int4pack_mm_for_cpu(
                narrow, self._packed, quantize.GROUP, self._matrix.scales_and_zeros
            )
        else:
            product = self._unpacked(narrow)
        if product.shape[1] > self.out_features:
            product = product[:, : self.out_features]
        return _finish(product, self.bias, x.dtype)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        return quantize.int4_rows(self._matrix, numbers)

    def _unpacked(self, x: torch.Tensor) -> torch.Tensor:
        num_blocks, _, half_block = self._matrix.packed.shape
        block, step = 2 * half_block, max(1, _ROOM_ELEMENTS // (2 * half_block * self.in_features))
        parts = []
        for start in range(0, num_blocks, step):
            blocks = slice(start, min(start + step, num_blocks))
            room = _room.take(self.in_features, (blocks.stop - start) * block)
            quantize.unpack_int4(self._matrix, blocks, room)
            parts.append(x @ room)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


@contextmanager
def keeping_dense(keeps: bool) -> Iterator[None]:
    """What is quantized to int4 inside keeps its dense weights, too, for prompts: five times the memory."""
    token = _keeps_dense.set(keeps)
    try:
        yield
    finally:
        _keeps_dense.reset(token)


@contextmanager
def measured() -> Iterator[Error]:
    """What is quantized inside adds its error to what this gives."""
    error = Error()
    token = _errors.set(error)
    try:
        yield error
    finally:
        _errors.reset(token)


def _tell(error: Error) -> None:
    if (total := _errors.get()) is not None:
        total.add(error)


def _finish(product: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    product = product.to(dtype)
    return product if bias is None else product.add_(bias)


def _num_bytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)
