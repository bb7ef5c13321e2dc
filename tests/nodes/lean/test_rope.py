"""Turning pairs that lie side by side is transformers' rotary embedding, whatever scales its frequencies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from nodes.lean.rope import Rope, paired_rows, turn

HEADS, HEAD_DIM, POSITION, TOKENS = 3, 16, 70, 9
KINDS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        **{"original_max_position_embeddings": 64},
    },
]


def in_memory(channels: torch.Tensor, num_turning: int = HEAD_DIM) -> torch.Tensor:
    """[tokens, heads, channels] in the order in which rows of a projection are loaded."""
    found = torch.empty(HEADS * HEAD_DIM, len(channels))
    for rows, first_row in paired_rows(HEADS, HEAD_DIM, num_turning):
        count = len(found[rows])
        found[rows] = channels.flatten(1).T[first_row : first_row + count]
    return found.T.reshape(channels.shape).contiguous()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind["rope_type"]))
def test_scores_are_those_of_transformers(kind: dict[str, Any]) -> None:
    config = LlamaConfig(
        hidden_size=HEADS * HEAD_DIM,
        num_attention_heads=HEADS,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 10000.0} | kind,
    )
    queries, keys = torch.randn(2, TOKENS, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(POSITION, POSITION + TOKENS)
    cos, sin = LlamaRotaryEmbedding(config)(queries, positions[None])
    theirs = apply_rotary_pos_emb(queries[None], keys[None], cos, sin, unsqueeze_dim=2)
    turns = Rope(config, HEAD_DIM, torch.float32).turns(POSITION, POSITION + TOKENS).unsqueeze(1)
    ours = [in_memory(queries), in_memory(keys)]
    for channels in ours:
        turn(channels, turns)
    torch.testing.assert_close(scores(*ours), scores(theirs[0][0], theirs[1][0]), rtol=1e-4, atol=1e-4)


def scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return torch.einsum("qhd,khd->hqk", queries, keys)


def test_channels_that_do_not_turn_stay_where_they_are() -> None:
    channels = torch.randn(TOKENS, HEADS, HEAD_DIM)
    ordered = in_memory(channels, 12)
    assert torch.equal(ordered[..., 12:], channels[..., 12:])
    assert torch.equal(ordered[..., 0:12:2], channels[..., :6])
    assert torch.equal(ordered[..., 1:12:2], channels[..., 6:12])


def test_later_positions_do_not_change_earlier_ones() -> None:
    config = LlamaConfig(hidden_size=48, num_attention_heads=HEADS, max_position_embeddings=9000)
    rope = Rope(config, HEAD_DIM, torch.bfloat16)
    first = rope.turns(5, 9).clone()
    assert rope.turns(5000, 5001).shape == (1, HEAD_DIM // 2)
    assert torch.equal(rope.turns(5, 9), first)
