"""The lean executor reads its layers' tensors and nothing else, and refuses what isn't what the config says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from nodes.executors import load_shard
from nodes.lean.shard import LeanShard
from nodes.sources import open_model
from nodes.tensors import TensorFile
from nodes.weights import ModelError, ModelFolder
from tests.nodes.modules.test_shard import without_tensor

UP = "model.layers.4.mlp.up_proj.weight"


def load(folder: ModelFolder, start_layer: int, end_layer: int) -> None:
    load_shard(folder, start_layer, end_layer, "float32", executor="lean")


def test_a_missing_tensor_is_refused_by_name(tiny_path: Path, tmp_path: Path) -> None:
    folder = open_model(without_tensor(tiny_path, tmp_path / "broken", UP))
    with pytest.raises(ModelError, match=r"model\.layers\.4\.mlp\.up_proj\.weight missing"):
        load(folder, 3, 6)
    load(folder, 0, 4)  # another shard doesn't need it


@pytest.mark.parametrize(
    ("tensor", "fault"),
    [
        (torch.zeros(5, 5), "of another shape"),
        (torch.zeros(96, 64, dtype=torch.int8), "of numbers that aren't floating point"),
    ],
    ids=["shape", "integers"],
)
def test_a_wrong_tensor_is_refused_by_file_and_name(
    tensor: torch.Tensor, fault: str, tiny_path: Path, tmp_path: Path
) -> None:
    folder = open_model(without_tensor(tiny_path, tmp_path / "broken", UP, {UP: tensor}))
    with pytest.raises(ModelError, match=rf"model\.safetensors: tensor model\.layers\.4\.mlp\.up_proj\.weight {fault}"):
        load(folder, 0, 6)


def test_an_untied_model_without_a_head_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    folder = open_model(without_tensor(tiny_path, tmp_path / "broken", "lm_head.weight"))
    with pytest.raises(ModelError, match=r"lm_head\.weight missing"):
        load(folder, 5, 6)


def test_a_file_that_was_cut_after_it_was_opened_is_named(tiny_path: Path, tmp_path: Path) -> None:
    folder = open_model(shutil.copytree(tiny_path, tmp_path / "cut"))
    with (folder.path / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    with pytest.raises(ModelError, match=r"tensor model\..* can't be read: .*model\.safetensors ends inside"):
        load(folder, 0, 6)


@pytest.mark.parametrize("layers", [(0, 1), (2, 4), (5, 6)])
def test_it_reads_the_bytes_of_its_tensors_once(layers: tuple[int, int], tiny_tied: ModelFolder) -> None:
    shard = load_shard(tiny_tied, *layers, executor="lean")
    assert isinstance(shard, LeanShard)
    wanted = sum(tensor.num_bytes for tensor in tiny_tied.tensors_of(*layers).values())
    assert shard._held.num_bytes_read == wanted


def test_rows_are_put_where_they_are_wanted_in_the_dtype_wanted(tiny: ModelFolder) -> None:
    with TensorFile(tiny.path / tiny.tensors[UP].file) as file:
        whole, rows = file.read(UP), torch.empty(20, 64, dtype=torch.float32)
        file.read_rows(UP, 7, rows[::2])
    assert torch.equal(rows[::2], whole[7:17].float())
