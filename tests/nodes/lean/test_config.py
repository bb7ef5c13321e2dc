"""The lean executor says what it covers, and of the rest what it lacks."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GemmaConfig, LlamaConfig, MistralConfig, Phi3Config, Qwen2Config, SmolLM3Config

from nodes.lean.config import NotCovered, covers, read

SMALL: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10000.0} | fields


LONG = rope("longrope", factor=4.0, short_factor=[1.0] * 8, long_factor=[2.0] * 8)
LONG["original_max_position_embeddings"] = 1024
NOT_COVERED = [
    (GemmaConfig(**SMALL), "'gemma'.*granite, llama"),
    (Phi3Config(**SMALL, max_position_embeddings=4096, rope_parameters=LONG, pad_token_id=0), "rope type 'longrope'"),
    (LlamaConfig(**SMALL, rope_parameters=rope("default", partial_rotary_factor=0.5)), "partial rotary.* llama"),
]


@pytest.mark.parametrize(("config", "reason"), NOT_COVERED, ids=["family", "rope", "partial"])
def test_what_it_lacks_is_named(config: Any, reason: str) -> None:
    assert not covers(config)
    with pytest.raises(NotCovered, match=reason):
        read(config)


def test_windows_are_those_of_each_layer() -> None:
    assert read(MistralConfig(**SMALL, sliding_window=9)).windows == (9,) * 4
    assert read(MistralConfig(**SMALL, sliding_window=None)).windows == (None,) * 4
    qwen2 = Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=9, max_window_layers=2)
    assert read(qwen2).windows == (None, None, 9, 9)


def test_layers_without_positions_are_known() -> None:
    assert read(SmolLM3Config(**SMALL, no_rope_layers=[1, 0, 1, 1])).rotary == (True, False, True, True)
