"""What quantized weights cost in quality, on a part of the text that bench/perplexity.py takes whole."""

from __future__ import annotations

import pytest

from bench.perplexity import perplexity, prose_ids
from nodes.executors import load_shard
from nodes.packed import MANY_TOKENS
from nodes.weights import ModelFolder

NUM_TOKENS = 160


@pytest.fixture(scope="module")
def dense(smollm2: ModelFolder) -> float:
    return perplexity(load_shard(smollm2, 0, smollm2.num_layers), prose_ids(smollm2)[:NUM_TOKENS])


@pytest.mark.parametrize(("weights", "bound"), [("int8", 1.03), ("int4", 1.04)])
def test_perplexity_hardly_rises(smollm2: ModelFolder, dense: float, weights: str, bound: float) -> None:
    """Once unpacked and once by the packed operators: the same numbers but for bfloat16's rounding. That moves the
    dense weights' own figure by 0.6 % between chunks of 160 and 8 tokens, and comes twice where scales come last.
    """
    shard, ids = load_shard(smollm2, 0, smollm2.num_layers, weights=weights), prose_ids(smollm2)[:NUM_TOKENS]
    unpacked, packed = (perplexity(shard, ids, chunk_tokens) for chunk_tokens in (NUM_TOKENS, MANY_TOKENS - 4))
    assert unpacked / dense < bound
    assert packed == pytest.approx(unpacked, rel=0.02)
