from __future__ import annotations

import pytest
import torch

from nodes.linear import DenseLinear, ReorderedLinear, make_linear


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_single_token_gets_the_numbers_that_it_gets_among_others(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    x = torch.randn(4, 64, generator=generator).to(dtype)
    linear = DenseLinear(weight)
    alone = torch.cat([linear(x[number : number + 1]) for number in range(4)])
    torch.testing.assert_close(alone, linear(x), rtol=0.02 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert alone.dtype == dtype


@pytest.mark.parametrize("num_tokens", [1, 2, 8, 130])
def test_reordered_weights_give_what_others_give(num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (
        torch.randn(*shape, generator=generator).bfloat16() for shape in ((96, 64), (96,), (num_tokens, 64))
    )
    if not ReorderedLinear.takes(weight):
        pytest.skip("this CPU multiplies no bfloat16")
    linear = make_linear(weight, bias)
    assert isinstance(linear, ReorderedLinear)
    torch.testing.assert_close(linear(x), DenseLinear(weight, bias)(x), rtol=0.02, atol=0.02)


def test_a_table_keeps_its_rows() -> None:
    weight = torch.randn(9, 64).bfloat16()
    assert torch.equal(make_linear(weight, is_table=True).rows(torch.tensor([3, 0])), weight[[3, 0]])
