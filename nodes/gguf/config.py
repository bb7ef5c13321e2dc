"""The metadata of a GGUF file as the fields of a Hugging Face config.

Whatever would change what the model computes and isn't understood here is refused by name, never passed over.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from nodes.gguf.file import GgufFile, TensorReader
from nodes.gguf.names import ARCHITECTURES, ROPE_FACTORS
from nodes.weights import ModelError

# What may be said of an architecture: read below, or of no matter to what is computed.
_UNDERSTOOD = {
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "expert_count"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.causal", "attention.layer_norm_rms_epsilon", "attention.sliding_window", "tensor_data_layout"),
    *("rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"),
    *("rope.scaling.original_context_length", "rope.scaling.finetuned"),
}
# All models published with llama3's scaling have these; a file holds only the factors that follow from them.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


class Metadata:
    """Typed reads of what a file says of its architecture. Raise ModelError naming file and key."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture = str(file.metadata.get("general.architecture"))

    def value(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.refusal(key, value, "must be a whole number above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.value(key, default)
        if not isinstance(value, float) or not 0 < value < math.inf:
            raise self.refusal(key, value, "must be a number above 0")
        return value

    def refusal(self, key: str, value: Any, rule: str) -> ModelError:
        said = "is missing" if value is None else f"is {value!r}"
        return ModelError(f"{self.file.path}: its metadata {self.architecture}.{key} {said}; it {rule}")


def read_config(file: GgufFile) -> tuple[str, dict[str, Any]]:
    """(architecture, fields of config.json). Raises ModelError."""
    metadata = Metadata(file)
    _refuse_other_models(metadata)
    width, num_heads = metadata.count("embedding_length"), metadata.count("attention.head_count")
    head_dim = metadata.count("attention.key_length", max(1, width // num_heads))
    for key in ("rope.dimension_count", "attention.value_length"):
        if (value := metadata.count(key, head_dim)) != head_dim:
            raise metadata.refusal(key, value, f"must be {head_dim}, as the head's other dimensions")
    # A window makes a llama what Hugging Face calls a mistral.
    family = "mistral" if metadata.value("attention.sliding_window") else metadata.architecture
    embedding = file.tensors.get("token_embd.weight")
    fields: dict[str, Any] = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "hidden_size": width,
        "intermediate_size": metadata.count("feed_forward_length"),
        "num_hidden_layers": metadata.count("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.count("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(metadata, head_dim),
        "vocab_size": embedding.num_rows if embedding else metadata.count("vocab_size"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": "bfloat16",
        **{f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")},
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    window = {"sliding_window": metadata.count("attention.sliding_window")} if family == "mistral" else {}
    return metadata.architecture, fields | window


def _refuse_other_models(metadata: Metadata) -> None:
    path, architecture = metadata.file.path, metadata.architecture
    if architecture not in ARCHITECTURES:
        served = ", ".join(ARCHITECTURES)
        raise ModelError(f"{path}: GGUF models of architecture {architecture!r} aren't supported; {served} are")
    if (parts := metadata.file.metadata.get("split.count", 0)) > 1:
        raise ModelError(f"{path} is one of {parts} parts; join them with llama.cpp's `llama-gguf-split --merge`")
    prefix = f"{architecture}."
    named = {key.removeprefix(prefix): value for key, value in metadata.file.metadata.items() if key.startswith(prefix)}
    for key in named.keys() - _UNDERSTOOD:
        raise metadata.refusal(key, named[key], "isn't understood")
    if metadata.value("expert_count", 0):
        raise metadata.refusal("expert_count", named["expert_count"], "must be 0: experts aren't supported")
    if metadata.value("attention.causal", True) is not True:
        raise metadata.refusal("attention.causal", named["attention.causal"], "must be true")
    if architecture != "llama" and metadata.value("attention.sliding_window"):
        raise metadata.refusal("attention.sliding_window", named["attention.sliding_window"], "isn't supported")


def _rope(metadata: Metadata, head_dim: int) -> dict[str, Any]:
    theta = metadata.number("rope.freq_base", 10_000.0)
    kind = metadata.value("rope.scaling.type", "none")
    if ROPE_FACTORS in metadata.file.tensors:
        return {"rope_theta": theta, **_llama3_rope(metadata.file, theta, head_dim)}
    if kind == "none":
        return {"rope_theta": theta, "rope_type": "default"}
    if kind not in ("linear", "yarn"):
        raise metadata.refusal("rope.scaling.type", kind, "must be none, linear or yarn")
    scaled = {"rope_theta": theta, "rope_type": kind, "factor": metadata.number("rope.scaling.factor")}
    if kind == "yarn":
        scaled["original_max_position_embeddings"] = metadata.count("rope.scaling.original_context_length")
    return scaled


def _llama3_rope(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """The parameters whose factors the file holds. Raises ModelError where they are of another scaling."""
    tensor = file.tensors[ROPE_FACTORS]
    with TensorReader(file) as reader:
        factors = reader.rows(tensor, 0, tensor.num_rows).ravel()
    factor = float(factors.max())
    if factors.shape != (head_dim // 2,) or not numpy.allclose(factors, _llama3_factors(theta, head_dim, factor), 1e-4):
        raise ModelError(
            f"{file.path}: tensor {ROPE_FACTORS} isn't of llama3's rope scaling, the one that is supported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW,
        "high_freq_factor": _LLAMA3_HIGH,
        "original_max_position_embeddings": _LLAMA3_CONTEXT,
    }


def _llama3_factors(theta: float, head_dim: int, factor: float) -> Any:
    """By what each frequency is divided: 1 for short waves, `factor` for long ones, between them in between."""
    waves = 2 * math.pi * theta ** (numpy.arange(0, head_dim, 2) / head_dim)
    shortness = (_LLAMA3_CONTEXT / waves - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    share = numpy.clip(shortness, 0, 1)
    return 1 / ((1 - share) / factor + share)
