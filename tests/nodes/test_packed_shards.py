"""Shards with quantized weights: both executors hold the same numbers, and a cut changes nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from nodes.executors import load_shard
from nodes.shard import Row, Shard
from nodes.sources import open_model
from nodes.weights import ModelError, ModelFolder
from tests.nodes.families import VARIANTS, Variant, make

PROMPT = [5, 17, 20, 3, 41, 8]
OWN_WAYS = ("qwen2", "gemma2", "gpt_neox", "hunyuan_v1_moe")


def logits(*shards: Shard) -> torch.Tensor:
    """float32 [tokens, vocab_size] of the prompt through shards one after another."""
    inputs: torch.Tensor | list[int] = PROMPT
    with torch.inference_mode():
        for shard in shards:
            layers = shard.start_layer, shard.end_layer
            row = Row(shard.new_cache(*layers), 0, inputs, len(PROMPT) if shard.is_tail else 0)
            inputs = shard.forward([row], *layers)[0]
    assert isinstance(inputs, torch.Tensor)
    return inputs


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("executor", ["lean", "transformers"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("model", ["tiny", "tiny_tied"])
def test_split_equals_whole(model: str, weights: str, executor: str, request: pytest.FixtureRequest) -> None:
    folder: ModelFolder = request.getfixturevalue(model)

    def shard(start_layer: int, end_layer: int) -> Shard:
        return load_shard(folder, start_layer, end_layer, "bfloat16", weights=weights, executor=executor)

    assert torch.equal(logits(shard(0, 3), shard(3, 6)), logits(shard(0, 6)))


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_both_executors_hold_the_same_numbers(tiny_tied: ModelFolder, weights: str) -> None:
    lean, modules = (
        logits(load_shard(tiny_tied, 0, 6, "float32", weights=weights, executor=executor))
        for executor in ("lean", "transformers")
    )
    assert relative(lean, modules) < 0.01


def test_eight_bits_are_near_the_dense_weights(tiny: ModelFolder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nodes.executors")
    dense = logits(load_shard(tiny, 0, 6, "float32"))
    int8 = logits(load_shard(tiny, 0, 6, "float32", weights="int8"))
    assert 0 < relative(int8, dense) < 0.15
    [said] = [record.getMessage() for record in caplog.records if "from the dense ones" in record.getMessage()]
    assert said.startswith("Weights in int8 are 0.")


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant.family in OWN_WAYS], ids=str)
def test_families_keep_their_own_ways(variant: Variant, tmp_path: Path) -> None:
    """Biases of projections, scaled embeddings, renamed tensors, routers multiplied by hand, experts."""
    make(variant, tmp_path)
    folder = open_model(tmp_path)
    dense, int8 = (
        logits(load_shard(folder, 0, folder.num_layers, "float32", weights=weights, executor="transformers"))
        for weights in ("dense", "int8")
    )
    assert 0 < relative(int8, dense) < 0.15


def test_missing_tensors_are_refused_as_ever(tiny_path: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_bytes((tiny_path / "config.json").read_bytes())
    tensors = load_file(tiny_path / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    for executor in ("lean", "transformers"):
        with pytest.raises(ModelError, match=r"layers\.2\.mlp\.up_proj"):
            load_shard(open_model(tmp_path), 0, 6, weights="int4", executor=executor)


def test_other_kinds_of_weights_are_refused(tiny: ModelFolder) -> None:
    with pytest.raises(ModelError, match="weights must be one of dense, int8, int4"):
        load_shard(tiny, 0, 6, weights="int3")
