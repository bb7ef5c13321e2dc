"""Hidden states as bytes: raw little-endian numbers, bit for bit, two bytes each in bfloat16 and four in float32."""

from __future__ import annotations

import re
import sys

import torch

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
MAX_SIZE = 2**31 - 1  # of one dimension; the body's limit is far below

_INTEGERS = {"bfloat16": torch.int16, "float32": torch.int32}
_SHAPE = re.compile(r"([0-9]{1,10}),([0-9]{1,10}),([0-9]{1,10})")


class ActivationError(ValueError):
    """A shape, dtype or body that doesn't fit: the sender's to mend."""


def encode(hidden: torch.Tensor, dtype: str) -> bytes:
    """The body of hidden states; casts to `dtype` where it differs."""
    # Integers of the same width, because numpy has no bfloat16 and a float could lose the payload of a NaN.
    integers = hidden.detach().to(DTYPES[_known(dtype)]).contiguous().view(_INTEGERS[dtype])
    return _little_endian(integers).numpy().tobytes()


def decode(body: bytes, shape: tuple[int, int, int], dtype: str) -> torch.Tensor:
    """The tensor of a body. Raises ActivationError before anything of the shape's size is allocated."""
    expected = num_bytes(shape, dtype)
    if len(body) != expected:
        raise ActivationError(f"the body is {len(body)} bytes; shape {format_shape(shape)} in {dtype} is {expected}")
    if not body:
        return torch.empty(shape, dtype=DTYPES[dtype])
    # A bytearray: torch warns that it could write through a tensor that shares read-only bytes.
    integers = torch.frombuffer(bytearray(body), dtype=_INTEGERS[dtype])
    return _little_endian(integers).view(DTYPES[dtype]).reshape(shape)


def num_bytes(shape: tuple[int, int, int], dtype: str) -> int:
    batch, tokens, width = shape
    return batch * tokens * width * DTYPES[_known(dtype)].itemsize


def parse_shape(text: str) -> tuple[int, int, int]:
    """(batch, tokens, width) of "1,7,576"."""
    found = _SHAPE.fullmatch(text.replace(" ", ""))
    if not found or max(sizes := [int(size) for size in found.groups()]) > MAX_SIZE:
        raise ActivationError(f"a shape is three whole numbers, batch,tokens,width; this is {text[:60]!r}")
    batch, tokens, width = sizes
    return batch, tokens, width


def format_shape(shape: tuple[int, ...] | torch.Size) -> str:
    return ",".join(map(str, shape))


def _known(dtype: str) -> str:
    if dtype not in DTYPES:
        raise ActivationError(f"dtype must be one of {', '.join(DTYPES)}; it is {dtype[:20]!r}")
    return dtype


def _little_endian(integers: torch.Tensor) -> torch.Tensor:
    """The same integers in the wire's byte order: unchanged on a little-endian machine."""
    if sys.byteorder == "little":
        return integers
    return torch.from_numpy(integers.numpy().byteswap())
