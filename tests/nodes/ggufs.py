"""Small GGUF files, written with the gguf package from folders that transformers wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedTokenizerFast

# As llama.cpp's converter names them, for the families that are written here.
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

Tensors = dict[str, tuple[NDArray[Any], GGMLQuantizationType]]


def make_gguf(
    source: Path,
    target: Path,
    *,
    kind: str = "F32",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[NDArray[Any], str] | None] | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    pre: str = "gpt-2",
) -> Path:
    """The folder's model as one file, its matrices of one kind. `metadata` and `tensors` (GGUF's names; numbers, and
    their type) are put in place of what follows from the folder; None leaves it out."""
    config = AutoConfig.from_pretrained(source)
    written = _tensors(source, config, GGMLQuantizationType[kind])
    for name, given in (tensors or {}).items():
        written.pop(name, None)
        if given is not None:
            written[name] = (given[0], GGMLQuantizationType[given[1]])
    fields = _metadata(config) | tokenizer_metadata(tokenizer or _tokenizer(source), pre) | dict(metadata or {})
    write_gguf(target, {key: value for key, value in fields.items() if value is not None}, written)
    return target


def write_gguf(target: Path, metadata: Mapping[str, Any], tensors: Tensors) -> None:
    """Numbers are quantized on the way, unless they are bytes already."""
    writer = GGUFWriter(target, str(metadata.get("general.architecture", "none")))
    for key, value in metadata.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, (numbers, kind) in tensors.items():
        packed = numbers if numbers.dtype == numpy.uint8 else gguf.quantize(numbers, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    finish(writer)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _metadata(config: Any) -> dict[str, Any]:
    architecture = {"mistral": "llama"}.get(config.model_type, config.model_type)
    fields = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    if hasattr(config, "head_dim"):
        fields |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if config.model_type == "mistral":
        fields["attention.sliding_window"] = config.sliding_window
    return {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in fields.items()}


def tokenizer_metadata(tokenizer: PreTrainedTokenizerFast, pre: str) -> dict[str, Any]:
    """What a byte-level tokenizer has to say, in GGUF's keys; its rules are only named."""
    fields = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {entry["id"]: entry["special"] for entry in fields["added_tokens"]}
    words = {number: word for word, number in tokenizer.get_vocab().items()}
    size = max(words) + 1
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [words.get(number, f"[PAD{number}]") for number in range(size)],
        "tokenizer.ggml.token_type": [
            (3 if added[number] else 4) if number in added else (1 if number in words else 5) for number in range(size)
        ],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in fields["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": tokenizer.bos_token_id,
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.add_bos_token": fields["post_processor"] is not None,
        "tokenizer.chat_template": tokenizer.chat_template,
    }


def _tokenizer(source: Path) -> PreTrainedTokenizerFast:
    found: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(source)
    return found


def _tensors(source: Path, config: Any, kind: GGMLQuantizationType) -> Tensors:
    """Vectors stay float32, as llama.cpp leaves them."""
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        numbers = tensor.float()
        if config.model_type in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
            numbers = interleaved(numbers, config.head_dim)
        tensors[gguf_name(name)] = numbers.numpy(), kind if numbers.dim() > 1 else GGMLQuantizationType.F32
    return tensors


def gguf_name(name: str) -> str:
    for ours, theirs in _NAMES.items():
        name = name.replace(f"{ours}.", f"{theirs}.")
    return name


def interleaved(numbers: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of each head's two halves in turn, as ggml rotates them."""
    order = torch.arange(head_dim).view(2, -1).T.reshape(-1)
    return numbers.view(-1, head_dim, numbers.shape[-1])[:, order].reshape(numbers.shape)
