"""The tensors of a GGUF file under Hugging Face's names: which ones a model has, and of what shapes they must be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nodes.gguf.file import GgufFile
from nodes.weights import ModelError

# GGUF's name of a layer's tensor: Hugging Face's, and the shape in the letters of _sizes.
_BLOCK = {
    "attn_norm.weight": ("input_layernorm.weight", "W"),
    "attn_q.weight": ("self_attn.q_proj.weight", "QW"),
    "attn_k.weight": ("self_attn.k_proj.weight", "KW"),
    "attn_v.weight": ("self_attn.v_proj.weight", "KW"),
    "attn_output.weight": ("self_attn.o_proj.weight", "WQ"),
    "ffn_norm.weight": ("post_attention_layernorm.weight", "W"),
    "ffn_gate.weight": ("mlp.gate_proj.weight", "FW"),
    "ffn_up.weight": ("mlp.up_proj.weight", "FW"),
    "ffn_down.weight": ("mlp.down_proj.weight", "WF"),
}
_QKV_BIAS = {
    "attn_q.bias": ("self_attn.q_proj.bias", "Q"),
    "attn_k.bias": ("self_attn.k_proj.bias", "K"),
    "attn_v.bias": ("self_attn.v_proj.bias", "K"),
}
_QK_NORM = {
    "attn_q_norm.weight": ("self_attn.q_norm.weight", "D"),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", "D"),
}
_BLOCKS = {"llama": _BLOCK, "qwen2": _BLOCK | _QKV_BIAS, "qwen3": _BLOCK | _QK_NORM}
ARCHITECTURES = tuple(_BLOCKS)

# ggml rotates neighbouring numbers, Hugging Face's modules the halves of a head; for these architectures GGUF keeps
# the rows of q and k in ggml's order, for the others ggml rotates halves, too.
_PAIRED = {"llama": ("attn_q.weight", "attn_k.weight")}

ROPE_FACTORS = "rope_freqs.weight"  # not a weight: what some models' rotation frequencies are divided by


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of the model."""

    gguf_name: str
    name: str  # Hugging Face's
    shape: tuple[int, ...]
    paired_rows: int = 0  # rows of a head, where they are pairs of neighbours that must become halves

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def named_tensors(file: GgufFile, architecture: str, config: Mapping[str, Any]) -> list[Named]:
    """Every tensor of the model, and no other is in the file. Raises ModelError naming file and tensor."""
    named = list(_expected(architecture, config))
    for tensor in named:
        found = file.tensors.get(tensor.gguf_name)
        if found is None:
            raise ModelError(f"{file.path} lacks tensor {tensor.gguf_name}")
        if found.shape != tensor.shape:
            shapes = f"{list(found.shape)}, but its metadata make it {list(tensor.shape)}"
            raise ModelError(f"{file.path}: tensor {tensor.gguf_name} is of shape {shapes}")
    known = {tensor.gguf_name for tensor in named} | {ROPE_FACTORS}
    for name in file.tensors.keys() - known:
        raise ModelError(f"{file.path}: tensor {name} isn't one that {architecture} models are known to have")
    return named


def _expected(architecture: str, config: Mapping[str, Any]) -> Iterator[Named]:
    sizes = _sizes(config)
    yield Named("token_embd.weight", "model.embed_tokens.weight", (sizes["V"], sizes["W"]))
    for layer in range(config["num_hidden_layers"]):
        for gguf_name, (name, letters) in _BLOCKS[architecture].items():
            paired_rows = sizes["D"] if gguf_name in _PAIRED.get(architecture, ()) else 0
            shape = tuple(sizes[letter] for letter in letters)
            yield Named(f"blk.{layer}.{gguf_name}", f"model.layers.{layer}.{name}", shape, paired_rows)
    yield Named("output_norm.weight", "model.norm.weight", (sizes["W"],))
    if not config["tie_word_embeddings"]:
        yield Named("output.weight", "lm_head.weight", (sizes["V"], sizes["W"]))


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Width, queries, keys (as values), feed forward, head dimension, vocabulary."""
    head_dim = config["head_dim"]
    return {
        "W": config["hidden_size"],
        "Q": config["num_attention_heads"] * head_dim,
        "K": config["num_key_value_heads"] * head_dim,
        "F": config["intermediate_size"],
        "D": head_dim,
        "V": config["vocab_size"],
    }
