"""A layer that lacks an expert, or has one of another size, is refused by the tensor's name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nodes.executors import load_shard
from nodes.layout import ModelError, Tensor
from nodes.modules import experts
from nodes.modules.checkpoint import Checkpoint
from nodes.sources import open_model
from tests.nodes.families import VARIANTS, make

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers of four experts, each expert three tensors on disk and two in transformers' modules."""
    folder = tmp_path_factory.mktemp("mixtral")
    make(next(variant for variant in VARIANTS if variant.family == "mixtral"), folder)
    return folder


def changed(source: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy whose tensors have been changed."""
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    return target


def expert(tensors: Mapping[str, object], layer: int, number: int) -> str:
    return next(name for name in sorted(tensors) if f".layers.{layer}." in name and f".experts.{number}." in name)


def test_a_missing_expert_is_refused_by_name(mixtral: Path, tmp_path: Path) -> None:
    name = expert(load_file(mixtral / "model.safetensors"), 3, 2)
    folder = open_model(changed(mixtral, tmp_path / "broken", lambda tensors: tensors.pop(name)))
    with pytest.raises(ModelError, match=rf"tensor {name} missing \(1 in all\)"):
        load_shard(folder, 2, 5, "float32")
    load_shard(folder, 0, 3, "float32")  # another shard doesn't need it


def test_an_expert_of_another_shape_is_refused_by_name(mixtral: Path, tmp_path: Path) -> None:
    name = expert(load_file(mixtral / "model.safetensors"), 1, 0)
    wrong = {name: torch.zeros(5, 5)}
    folder = open_model(changed(mixtral, tmp_path / "broken", lambda tensors: tensors.update(wrong)))
    with pytest.raises(ModelError, match=rf"tensor {name} of another shape"):
        load_shard(folder, 0, 3, "float32")


def test_layers_without_experts_are_no_fault() -> None:
    def tensors(*names: str) -> dict[str, Tensor]:
        return {name: Tensor("model.safetensors", 4, 8) for name in names}

    whole = tensors("layers.0.mlp.up.weight", *(f"layers.1.mlp.experts.{number}.up.weight" for number in range(12)))
    experts.check(whole, whole)
    experts.check(tensors("layers.0.mlp.up.weight"), whole)
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.experts\.11\.up\.weight missing"):
        experts.check({name: tensor for name, tensor in whole.items() if ".11." not in name}, whole)


def test_only_the_shards_tensors_are_read_though_files_of_others_are_gone(mixtral: Path, tmp_path: Path) -> None:
    tensors = load_file(mixtral / "model.safetensors")
    files = {name: f"model-{1 + (3 <= layer < 5):05}-of-00002.safetensors" for name, layer in _layers(tensors).items()}
    mine = {name: tensor for name, tensor in tensors.items() if files[name].startswith("model-00002")}
    save_file(mine, tmp_path / "model-00002-of-00002.safetensors", metadata={"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (tmp_path / "config.json").write_bytes((mixtral / "config.json").read_bytes())
    folder = open_model(tmp_path)
    shard = load_shard(folder, 3, 5, "float32", executor="transformers")
    assert shard.is_tail
    held = folder.tensors_of(3, 5)
    assert set(held) == set(mine)
    with Checkpoint(folder.path, held) as checkpoint:
        assert checkpoint.num_bytes_read == 0  # asking for names reads nothing
        read = [tensor[...] for tensor in checkpoint.state_dict().values()]
        assert checkpoint.num_bytes_read == sum(tensor.nbytes for tensor in read)
    with pytest.raises(ModelError, match=r"model-00001-of-00002\.safetensors is missing"):
        load_shard(folder, 2, 5, "float32")


def _layers(tensors: Mapping[str, object]) -> dict[str, int]:
    """Each tensor's layer; of what isn't in a layer: the embedding 0, the rest the last."""
    return {name: int(name.split(".")[2]) if ".layers." in name else 4 * ("embed" not in name) for name in tensors}
