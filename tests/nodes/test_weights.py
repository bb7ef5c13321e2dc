"""A folder is whole or it is refused by name; its fingerprint is that of its source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pytest_django.fixtures import Settings
from safetensors.torch import load_file, save_file

from nodes.executors import load_shard
from nodes.modules.shard import ModuleShard
from nodes.sources import open_model
from nodes.weights import INDEX, ModelError, ModelFolder, layer_of
from tests.nodes.models import change, shard_files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, settings: Settings) -> Path:
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")
    return tmp_path / "cache"


def test_it_tells_what_a_model_is(single: Path) -> None:
    folder = open_model(single)
    assert (folder.family, folder.num_layers, folder.hidden_size, folder.context_length) == ("llama", 6, 64, 4096)
    assert folder.tensors["model.layers.0.self_attn.k_proj.weight"].num_elements == 32 * 64


@pytest.mark.parametrize("name", ["tiny", "tiny_tied"])
@pytest.mark.parametrize("layers", [(0, 6), (0, 2), (2, 3), (4, 6)])
def test_it_counts_what_a_shard_holds(name: str, layers: tuple[int, int], request: pytest.FixtureRequest) -> None:
    folder: ModelFolder = request.getfixturevalue(name)
    shard = load_shard(folder, *layers, executor="transformers")
    assert isinstance(shard, ModuleShard)
    held = sum(tensor.numel() for tensor in shard._model.parameters())
    assert folder.num_elements(*layers) == held


def test_a_model_in_several_files_opens(sharded: Path) -> None:
    assert len(shard_files(sharded)) > 3
    assert set(open_model(sharded).tensors) == set(json.loads((sharded / INDEX).read_text())["weight_map"])


def test_files_of_foreign_layers_may_be_gone(sharded: Path) -> None:
    whole = open_model(sharded)
    before = whole.fingerprint
    kept = {tensor.file for tensor in whole.tensors_of(0, 2).values()}
    for file in shard_files(sharded):
        if file.name not in kept:
            file.unlink()
    folder = open_model(sharded)
    assert folder.fingerprint == before
    assert folder.tensors_of(0, 2) == whole.tensors_of(0, 2)
    for executor in ("transformers", "lean"):
        load_shard(folder, 0, 2, executor=executor)


def test_a_missing_file_of_ones_own_layers_is_named_with_a_tensor_of_it(sharded: Path) -> None:
    whole = open_model(sharded)
    lost = whole.tensors["model.layers.3.mlp.up_proj.weight"].file
    (sharded / lost).unlink()
    folder = open_model(sharded)
    for refused in (folder.tensors_of, folder.num_elements, folder.prepare):
        with pytest.raises(ModelError, match=rf"{lost} is missing; with it tensor model\.\S+ and \d+ more"):
            refused(3, 4)


@pytest.mark.parametrize("executor", ["transformers", "lean"])
@pytest.mark.parametrize(("shape", "words"), [((96, 65), "of another shape"), (None, "missing")])
def test_a_tensor_that_isnt_the_configs_is_refused_by_whatever_computes(
    single: Path, executor: str, shape: tuple[int, int] | None, words: str
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(single / "model.safetensors")
    del tensors[name]
    save_file(tensors | ({name: torch.zeros(shape)} if shape else {}), single / "model.safetensors")
    folder = open_model(single)
    with pytest.raises(ModelError, match=rf"{single.name}.*{name}.*{words}"):
        load_shard(folder, 0, 2, executor=executor)
    load_shard(folder, 2, 4, executor=executor)  # others' layers don't matter


def test_a_folder_whose_files_were_never_seen_whole_says_what_to_do(sharded: Path) -> None:
    shard_files(sharded)[-1].unlink()
    with pytest.raises(ModelError, match=r"run the node once with all files in place, or put a meshnet\.json"):
        _ = open_model(sharded).fingerprint


LONG_ROPE = {
    **{"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    **{"factor": 2.0, "original_max_position_embeddings": 2048},
}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "bloom"}, "'bloom' isn't supported; apertus, .*, llama, .* are"),
        ({"model_type": None}, "isn't supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized"),
        ({"rope_parameters": LONG_ROPE}, "rope type 'longrope' isn't supported; default, "),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be a whole number"),
        ({"hidden_size": "wide"}, "can't be used"),
        ({"num_attention_heads": 7}, "can't be used"),
    ],
)
def test_a_config_that_isnt_served_is_refused_by_name(single: Path, fields: dict[str, object], words: str) -> None:
    change(single / "config.json", **fields)
    with pytest.raises(ModelError, match=words):
        open_model(single)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_config_that_cannot_be_read_is_refused(single: Path, text: str) -> None:
    (single / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        open_model(single)


def test_a_conversion_keeps_its_sources_fingerprint(single: Path) -> None:
    (single / "meshnet.json").write_text(json.dumps({"fingerprint": "f00d" * 16, "source": "a GGUF"}))
    assert open_model(single).fingerprint == "f00d" * 16


@pytest.mark.parametrize("noted", ["{}", '{"fingerprint": 5}', '{"fingerprint": "f00d"}'])
def test_a_noted_fingerprint_that_is_none_is_refused_naming_the_file(single: Path, noted: str) -> None:
    (single / "meshnet.json").write_text(noted)
    with pytest.raises(ModelError, match=r"meshnet\.json: fingerprint must be 64 hex digits"):
        _ = open_model(single).fingerprint


@pytest.mark.parametrize(
    ("name", "layer"),
    [("model.layers.12.mlp.up_proj.weight", 12), ("lm_head.weight", None), ("a.h.3.x", 3), ("layers.0.x", 0)],
)
def test_a_tensors_name_tells_its_layer(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer


@pytest.fixture(autouse=True)
def _unchanged(tiny_path: Path, sharded_source: Path) -> Iterator[None]:
    """Tests break copies, never what they share."""
    before = [(file, file.stat().st_mtime_ns) for folder in (tiny_path, sharded_source) for file in folder.iterdir()]
    yield
    assert all(file.stat().st_mtime_ns == at for file, at in before)
