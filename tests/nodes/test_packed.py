"""Products with quantized weights: near the dense ones, the same for a row whatever else runs, few tokens or many."""

from __future__ import annotations

import pytest
import torch

from nodes import packed
from nodes.linear import DenseLinear, make_linear

KINDS = ["int8", "int4"]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_tokens", [1, 5, packed.MANY_TOKENS, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_the_rows_that_are_kept(kind: str, num_tokens: int, dtype: torch.dtype) -> None:
    product = make_linear(numbers(100, 96), None, kind)
    x = numbers(num_tokens, 96, seed=1).to(dtype)
    found = product(x)
    assert (found.dtype, tuple(found.shape)) == (dtype, (num_tokens, 100))
    assert relative(found, x.float() @ product.rows(torch.arange(100)).t()) < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_the_bias_is_added(kind: str) -> None:
    weight, bias, x = numbers(64, 32), numbers(64, seed=2), numbers(3, 32, seed=1)
    torch.testing.assert_close(make_linear(weight, bias, kind)(x), make_linear(weight, None, kind)(x) + bias)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_multiplied_to_the_same_bits_whatever_other_rows_there_are(kind: str) -> None:
    product, x = make_linear(numbers(192, 96), None, kind), numbers(packed.MANY_TOKENS - 1, 96, seed=1)
    together = product(x)
    assert all(torch.equal(product(x[row : row + 1])[0], together[row]) for row in range(len(x)))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_unpacked_in_several_parts_give_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    product, x = make_linear(numbers(300, 64), None, kind), numbers(100, 64, seed=1)
    whole = product(x)
    monkeypatch.setattr(packed, "_ROOM_ELEMENTS", 64 * 64)
    torch.testing.assert_close(product(x), whole)


def test_dense_weights_beside_int4_are_for_many_tokens() -> None:
    weight, x = numbers(64, 96), numbers(packed.MANY_TOKENS, 96, seed=1).bfloat16()
    with packed.keeping_dense(True):
        both = make_linear(weight, None, "int4")
    alone = make_linear(weight, None, "int4")
    assert torch.equal(both(x[:5]), alone(x[:5]))
    assert relative(both(x), x.float() @ weight.t()) < 0.01 < relative(alone(x), x.float() @ weight.t())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_as_small_as_its_bits(kind: str) -> None:
    product = make_linear(numbers(256, 128), None, kind)
    assert isinstance(product, packed.Int8Linear | packed.Int4Linear)
    bits = product.num_bytes * 8 / (256 * 128)
    assert bits <= {"int8": 8.2, "int4": 5}[kind]


def test_shapes_that_the_operators_do_not_take_stay_dense() -> None:
    assert isinstance(make_linear(numbers(8, 40), None, "int4"), DenseLinear)


def test_errors_are_summed_over_all_that_is_quantized() -> None:
    with packed.measured() as error:
        make_linear(numbers(64, 64), None, "int4")
        alone = error.relative
        make_linear(numbers(64, 64, seed=3), None, "int4")
    make_linear(numbers(64, 64), None, "int8")  # outside: not counted
    assert alone == pytest.approx(0.08, abs=0.02)
    assert error.relative == pytest.approx(0.08, abs=0.02)
    assert error.squared_weights == pytest.approx(2 * 64 * 64, rel=0.1)
