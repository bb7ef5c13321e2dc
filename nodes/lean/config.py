"""Which models the lean executor covers, and what it has to know of them, read from their configs.

Llama-shaped: norm before each half of a block, grouped-query attention with rotary positions, a gated MLP. Families
differ in what is listed here; one that differs in anything else isn't covered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nodes.lean.rope import ROPE_TYPES

FAMILIES = ("granite", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3")


class NotCovered(Exception):
    """The config asks for something the lean executor hasn't got. The text says what."""


@dataclass(frozen=True, slots=True)
class LeanConfig:
    """A model's blocks, as far as they differ from family to family."""

    width: int
    vocab_size: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    activation: Callable[[torch.Tensor], torch.Tensor]
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool  # of each head's queries and keys, before they are turned
    is_fused_on_disk: bool  # qkv_proj and gate_up_proj instead of five tensors
    is_tied: bool
    windows: tuple[int | None, ...]  # of each layer: how many tokens it sees, None: all
    rotary: tuple[bool, ...]  # of each layer: whether positions are turned
    num_turning: int  # channels of a head that are turned; the others stay
    attention_scale: float
    embedding_scale: float
    residual_scale: float
    logits_divisor: float


def covers(config: Any) -> bool:
    """Whether the lean executor serves a model of this config."""
    try:
        read(config)
    except NotCovered:
        return False
    return True


def read(config: Any) -> LeanConfig:
    """What the executor needs of a transformers config. Raises NotCovered."""
    from transformers.activations import ACT2FN

    family = config.model_type
    if family not in FAMILIES:
        raise NotCovered(f"model_type {family!r} (it covers {', '.join(FAMILIES)})")
    _check_rope(config)
    num_heads, num_layers = config.num_attention_heads, config.num_hidden_layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    return LeanConfig(
        width=config.hidden_size,
        vocab_size=config.vocab_size,
        intermediate=config.intermediate_size,
        num_heads=num_heads,
        num_kv_heads=config.num_key_value_heads or num_heads,
        head_dim=head_dim,
        norm_epsilon=config.rms_norm_eps,
        activation=ACT2FN[config.hidden_act],
        has_qkv_bias=family == "qwen2" or attention_bias,
        has_output_bias=attention_bias,
        has_mlp_bias=bool(getattr(config, "mlp_bias", False)),
        has_qk_norm=family == "qwen3",
        is_fused_on_disk=family == "phi3",
        is_tied=bool(config.tie_word_embeddings),
        windows=_windows(config),
        rotary=tuple(bool(turned) for turned in getattr(config, "no_rope_layers", None) or [True] * num_layers),
        num_turning=int(head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0)),
        attention_scale=getattr(config, "attention_multiplier", head_dim**-0.5),
        embedding_scale=getattr(config, "embedding_multiplier", 1.0),
        residual_scale=getattr(config, "residual_multiplier", 1.0),
        logits_divisor=getattr(config, "logits_scaling", 1.0),
    )


def _check_rope(config: Any) -> None:
    rope = config.rope_parameters
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        raise NotCovered("rotary embeddings that differ from layer to layer")
    if (kind := rope.get("rope_type", "default")) not in ROPE_TYPES:
        raise NotCovered(f"rope type {kind!r} (it covers {', '.join(ROPE_TYPES)})")
    if rope.get("partial_rotary_factor", 1.0) != 1.0 and config.model_type != "phi3":
        raise NotCovered(f"partial rotary embeddings in {config.model_type}")


def _windows(config: Any) -> tuple[int | None, ...]:
    num_layers = int(config.num_hidden_layers)
    window: int | None = getattr(config, "sliding_window", None)
    if config.model_type in ("mistral", "phi3"):
        return (window,) * num_layers
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * num_layers
    if unknown := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        raise NotCovered(f"layers of type {unknown[0]!r}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
