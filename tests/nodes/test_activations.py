"""Bits in, the same bits out."""

from __future__ import annotations

import math

import pytest
import torch

from nodes.activations import ActivationError, decode, encode, format_shape, num_bytes, parse_shape


def patterns() -> torch.Tensor:
    """[1, 256, 256] of bfloat16: every pattern there is, NaN payloads, both zeros and subnormals among them."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).reshape(1, 256, 256)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    integers = torch.int16 if one.dtype == torch.bfloat16 else torch.int32
    return one.dtype == other.dtype and torch.equal(one.contiguous().view(integers), other.contiguous().view(integers))


def test_every_bfloat16_pattern_survives() -> None:
    body = encode(patterns(), "bfloat16")
    assert len(body) == 2 * 65536
    assert same_bits(decode(body, (1, 256, 256), "bfloat16"), patterns())


def test_the_bytes_are_little_endian() -> None:
    assert encode(torch.tensor([[[1.0, -2.0]]]), "bfloat16") == b"\x80\x3f\x00\xc0"
    assert encode(torch.tensor([[[1.0]]]), "float32") == b"\x00\x00\x80\x3f"


def test_a_tensor_that_is_not_contiguous_goes_out_in_its_own_order() -> None:
    hidden = patterns().transpose(1, 2)
    assert not hidden.is_contiguous()
    assert same_bits(decode(encode(hidden, "bfloat16"), (1, 256, 256), "bfloat16"), hidden)


def test_a_nan_payload_survives_float32() -> None:
    hidden = torch.tensor([0x7FC12345, -4567, 1, -(2**31)], dtype=torch.int32).view(torch.float32).reshape(1, 2, 2)
    assert same_bits(decode(encode(hidden, "float32"), (1, 2, 2), "float32"), hidden)


def test_bfloat16_in_float32_and_back_is_exact() -> None:
    numbers = torch.randn(1, 3, 64).to(torch.bfloat16)
    assert torch.equal(decode(encode(numbers, "float32"), (1, 3, 64), "float32").to(torch.bfloat16), numbers)


def test_an_empty_tensor_is_an_empty_body() -> None:
    assert encode(torch.empty(1, 0, 8), "bfloat16") == b""
    assert decode(b"", (1, 0, 8), "bfloat16").shape == (1, 0, 8)


def test_what_is_decoded_may_be_written_to() -> None:
    hidden = decode(b"\x00\x00" * 4, (1, 1, 4), "bfloat16")
    hidden += 1
    assert hidden.sum() == 4


@pytest.mark.parametrize("length", [0, 7, 9, 16])
def test_a_body_of_another_length_is_refused_with_both_numbers(length: int) -> None:
    with pytest.raises(ActivationError, match=f"{length} bytes.*is 8"):
        decode(bytes(length), (1, 1, 4), "bfloat16")


def test_a_huge_shape_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(ActivationError):
        decode(b"1234", (2**31 - 1, 2**31 - 1, 2**31 - 1), "bfloat16")


@pytest.mark.parametrize("dtype", ["float16", "int8", "", "bfloat16 "])
def test_an_unknown_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(ActivationError, match="bfloat16, float32"):
        decode(b"", (1, 1, 1), dtype)
    with pytest.raises(ActivationError):
        encode(torch.zeros(1, 1, 1), dtype)


def test_a_shape_is_read_as_it_is_written() -> None:
    assert parse_shape("1,7,576") == (1, 7, 576)
    assert parse_shape("1, 7, 576") == (1, 7, 576)
    assert format_shape((1, 7, 576)) == "1,7,576"
    assert num_bytes((1, 7, 576), "float32") == math.prod((1, 7, 576)) * 4


@pytest.mark.parametrize(
    "text", ["", "1,2", "1,2,3,4", "1,-2,3", "a,b,c", "1,2,3.0", "1,2,2147483648", "١,2,3", "1e3,1,1"]
)
def test_what_is_not_a_shape_is_refused(text: str) -> None:
    with pytest.raises(ActivationError, match="batch,tokens,width"):
        parse_shape(text)
