"""Tiny random models of every family that is served, each where it differs from the others.

Few and narrow, so that all of them fit into a short test; the numbers are chosen so that what a config turns on also
matters: windows shorter than the prompt, scales far from one, biases and norms that aren't what they start as.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 120
NUM_LAYERS = 5
CONTEXT = 256

_COMMON: dict[str, Any] = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": NUM_LAYERS},
    **{"num_attention_heads": 4, "max_position_embeddings": CONTEXT},
    **{"initializer_range": 0.2, "tie_word_embeddings": False},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
_EXPERTS: dict[str, Any] = {
    **{"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2},
    **{"moe_k": 2, "moe_topk": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    **{"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "n_shared_experts": 1},
}
_LATENT: dict[str, Any] = {
    **{"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 4, "v_head_dim": 12},
    **{"num_key_value_heads": 4, "head_dim": 8},
}
TIED = {"tie_word_embeddings": True}
ONE_HEAD = {"num_key_value_heads": 1}
WIDE_HEADS = {"head_dim": 24}
WINDOW = {"sliding_window": 8}
LONG_WINDOW = {"sliding_window": 64}


def rope(kind: str, **fields: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **fields}}


_LLAMA3 = rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=CONTEXT // 8
)
_YARN = rope("yarn", factor=4.0, original_max_position_embeddings=CONTEXT // 4)


@dataclass(frozen=True)
class Variant:
    """One config of a family."""

    family: str
    changes: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        return f"{self.family}-{self.note}" if self.note else self.family

    def config(self) -> Any:
        known = AutoConfig.for_model(self.family)
        optional = _EXPERTS | {"num_key_value_heads": 2}
        wanted = _COMMON | {name: value for name, value in optional.items() if hasattr(known, name)} | self.changes
        return AutoConfig.for_model(self.family, **wanted)


VARIANTS = (
    Variant("llama"),
    Variant("llama", TIED | ONE_HEAD | rope("linear", factor=2.0), "one head, tied, linear"),
    Variant("llama", WIDE_HEADS | rope("dynamic", factor=4.0), "wide heads, dynamic"),
    Variant("llama", _LLAMA3, "llama3"),
    Variant("llama", {"attention_bias": True, "mlp_bias": True} | _YARN, "biases, yarn"),
    Variant("mistral", WINDOW | WIDE_HEADS, "short window"),
    Variant("mistral", LONG_WINDOW | {"head_dim": 8}, "long window"),
    Variant("qwen2", TIED, "tied"),
    Variant("qwen2", WINDOW | {"use_sliding_window": True, "max_window_layers": 2}, "window from layer 2"),
    Variant("qwen3", TIED | {"head_dim": 16}),
    Variant("smollm3", TIED | {"no_rope_layer_interval": 2}),
    Variant("phi3", WINDOW | {"partial_rotary_factor": 0.5}),
    Variant(
        "granite",
        TIED
        | {"embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2},
    ),
    Variant("gemma", ONE_HEAD | {"head_dim": 16, "tie_word_embeddings": True}),
    Variant(
        "gemma2",
        TIED
        | WINDOW
        | {"head_dim": 16, "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    Variant("gemma3_text", TIED | WINDOW | {"head_dim": 16, "sliding_window_pattern": 2}),
    Variant("gemma3_text", TIED | LONG_WINDOW | {"head_dim": 16, "sliding_window_pattern": 3}, "long window"),
    Variant("cohere", TIED | {"logit_scale": 0.25, "use_qk_norm": True}),
    Variant("cohere2", TIED | WINDOW | {"logit_scale": 0.25, "head_dim": 16}),
    Variant("olmo", {"clip_qkv": 3.0}),
    Variant("olmo2"),
    Variant("olmo3", WINDOW),
    Variant("exaone4", WINDOW | {"head_dim": 16}),
    Variant("glm", {"head_dim": 16, "attention_bias": True}),
    Variant("glm4", {"head_dim": 16}),
    Variant("stablelm", {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True}),
    Variant("phi", {"partial_rotary_factor": 0.5, "qk_layernorm": True}),
    Variant("starcoder2", WINDOW | TIED),
    Variant("nemotron", {"head_dim": 16}),
    Variant("ernie4_5", TIED | {"head_dim": 16, "use_bias": True}),
    Variant("seed_oss", {"head_dim": 16}),
    Variant("arcee", {"head_dim": 16}),
    Variant("hunyuan_v1_dense", TIED | {"head_dim": 16}),
    Variant("apertus", TIED),
    Variant("exaone"),
    Variant("gpt_neox"),
    Variant("mixtral", WINDOW),
    Variant("qwen2_moe", {"mlp_only_layers": [1], "decoder_sparse_step": 1}),
    Variant("qwen3_moe", {"head_dim": 16, "mlp_only_layers": [2]}),
    Variant("olmoe", {"clip_qkv": 3.0}),
    Variant("ernie4_5_moe", {"moe_layer_start_index": 1, "head_dim": 16}),
    Variant("glm4_moe", {"head_dim": 16, "use_qk_norm": True}),
    Variant("gpt_oss", WINDOW | {"head_dim": 16}),
    Variant("minimax_m2", {"head_dim": 16, "rotary_dim": 8}),
    Variant("granitemoe", {"embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.4}),
    Variant("granitemoeshared", {"shared_intermediate_size": 24, "embedding_multiplier": 3.0}),
    Variant("hunyuan_v1_moe", {"head_dim": 16}),
    Variant("phimoe", {"attention_bias": True, "lm_head_bias": True}),
    Variant("deepseek_v2", _LATENT | {"topk_method": "group_limited_greedy"}),
    Variant("deepseek_v3", _LATENT),
    Variant("glm4_moe_lite", _LATENT),
)


def make(variant: Variant, folder: Path) -> Any:
    """The model in float32, and its folder as transformers writes it."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            variant.config(), dtype=torch.float32
        ).eval()
        held = model.state_dict()
        with torch.no_grad():  # norms start as ones and biases as zeros, which would hide one that is left out
            for tensor in held.values():
                if tensor.dim() == 1 and tensor.is_floating_point():
                    tensor.add_(torch.randn_like(tensor), alpha=0.1)
    model.save_pretrained(folder)
    return model.requires_grad_(False)
