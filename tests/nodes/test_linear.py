from __future__ import annotations

import pytest
import torch

from nodes.linear import DenseLinear


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_single_token_gets_the_numbers_that_it_gets_among_others(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    x = torch.randn(4, 64, generator=generator).to(dtype)
    linear = DenseLinear(weight)
    alone = torch.cat([linear(x[number : number + 1]) for number in range(4)])
    torch.testing.assert_close(alone, linear(x), rtol=0.02 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert alone.dtype == dtype
