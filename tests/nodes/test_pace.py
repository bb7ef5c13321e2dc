from __future__ import annotations

import pytest

from nodes.pace import estimate_ms_per_layer


@pytest.mark.parametrize("weights", ["dense", "int8", "int4"])
def test_a_large_layer_is_reckoned_slower_than_a_small_one(weights: str) -> None:
    small = estimate_ms_per_layer(64, 50_000, "bfloat16", weights)
    large = estimate_ms_per_layer(64, 400_000_000, "bfloat16", weights)

    assert 0 < small < large
