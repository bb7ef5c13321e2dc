"""What a GGUF file says of its model is understood, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from nodes.gguf.config import read_config
from nodes.gguf.file import read_header
from nodes.gguf.names import named_tensors
from nodes.weights import ModelError
from tests.nodes.ggufs import make_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(source: Path, folder: Path, **given: Any) -> dict[str, Any]:
    """The config of the tiny llama with other metadata, whose dots are written as double underscores."""
    fields = {f"llama.{key.replace('__', '.')}": value for key, value in given.items() if key != "tensors"}
    path = make_gguf(source, folder / "x.gguf", metadata=fields, tensors=given.get("tensors"))
    file = read_header(path)
    architecture, config = read_config(file)
    named_tensors(file, architecture, config)
    return config


def test_a_plain_model_is_read(tiny_path: Path, tmp_path: Path) -> None:
    config = read(tiny_path, tmp_path)
    assert (config["model_type"], config["num_hidden_layers"], config["head_dim"]) == ("llama", 6, 16)
    assert config["rope_parameters"] == {"rope_theta": 10_000.0, "rope_type": "default"}
    assert config["rms_norm_eps"] == 1e-6
    assert (config["bos_token_id"], config["eos_token_id"], config["tie_word_embeddings"]) == (0, 2, False)


def test_what_a_file_may_leave_out_has_its_usual_value(tiny_path: Path, tmp_path: Path) -> None:
    left_out = {"rope__freq_base": None, "attention__key_length": None, "attention__value_length": None}
    assert read(tiny_path, tmp_path, **left_out) == read(tiny_path, tmp_path)


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({"type": "none"}, {"rope_type": "default"}),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 8.0, "original_context_length": 512, "finetuned": True},
            {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512},
        ),
    ],
)
def test_rope_scaling_is_read(fields: dict[str, Any], rope: dict[str, Any], tiny_path: Path, tmp_path: Path) -> None:
    given = {f"rope__scaling__{key}": value for key, value in fields.items()}
    assert read(tiny_path, tmp_path, **given)["rope_parameters"] == {"rope_theta": 10_000.0, **rope}


def llama3_factors() -> Any:
    """What transformers divides each frequency by."""
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters=LLAMA3)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, None)
    plain, _ = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    return (plain / scaled).numpy().astype(numpy.float32)


def test_llama3s_rope_scaling_is_known_by_its_factors(tiny_path: Path, tmp_path: Path) -> None:
    tensors = {"rope_freqs.weight": (llama3_factors(), "F32")}
    assert read(tiny_path, tmp_path, rope__freq_base=500_000.0, tensors=tensors)["rope_parameters"] == LLAMA3


@pytest.mark.parametrize("factors", [llama3_factors() * 1.01, llama3_factors()[:-1], numpy.ones(8, numpy.float32) * 4])
def test_other_factors_are_refused(factors: Any, tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"x\.gguf: tensor rope_freqs\.weight"):
        read(tiny_path, tmp_path, rope__freq_base=500_000.0, tensors={"rope_freqs.weight": (factors, "F32")})


def test_a_llama_with_a_window_is_a_mistral(tiny_path: Path, tmp_path: Path) -> None:
    config = read(tiny_path, tmp_path, attention__sliding_window=64)
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 64)
    assert config["architectures"] == ["MistralForCausalLM"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"block_count": None}, "llama.block_count is missing; it must be a whole number above 0"),
        ({"block_count": "six"}, "llama.block_count is 'six'"),
        ({"attention__head_count_kv": [2, 2]}, "llama.attention.head_count_kv is"),
        ({"attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"rope__freq_base": 0.0}, "llama.rope.freq_base is 0.0"),
        ({"expert_count": 8}, "experts aren't supported"),
        ({"logit_scale": 0.5}, "llama.logit_scale is 0.5; it isn't understood"),
        ({"attention__causal": False}, "llama.attention.causal is False; it must be true"),
        ({"rope__dimension_count": 8}, "llama.rope.dimension_count is 8; it must be 16"),
        ({"attention__value_length": 8}, "llama.attention.value_length is 8"),
        ({"rope__scaling__type": "longrope"}, "rope.scaling.type is 'longrope'; it must be none, linear or yarn"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0}, "original_context_length is missing"),
        ({"feed_forward_length": 100}, "tensor blk.0.ffn_gate.weight is of shape [96, 64], but its metadata make"),
        ({"block_count": 7}, "lacks tensor blk.6.attn_norm.weight"),
        ({"block_count": 5}, "tensor blk.5."),
        ({"tensors": {"output_norm.weight": None}}, "lacks tensor output_norm.weight"),
        ({"tensors": {"blk.0.attn_q.bias": (numpy.zeros(64, numpy.float32), "F32")}}, "tensor blk.0.attn_q.bias isn't"),
    ],
)
def test_what_isnt_understood_is_refused(fields: dict[str, Any], words: str, tiny_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"x\.gguf") as caught:
        read(tiny_path, tmp_path, **fields)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general.architecture": "gemma3"}, "architecture 'gemma3' aren't supported; llama, qwen2, qwen3 are"),
        ({"split.count": 3}, "is one of 3 parts; join them with"),
        ({"general.architecture": "qwen2"}, "qwen2.embedding_length is missing"),
    ],
)
def test_other_files_are_refused(fields: dict[str, Any], words: str, tiny_path: Path, tmp_path: Path) -> None:
    path = make_gguf(tiny_path, tmp_path / "x.gguf", metadata=fields)
    with pytest.raises(ModelError, match=r"x\.gguf") as caught:
        read_config(read_header(path))
    assert words in str(caught.value)
