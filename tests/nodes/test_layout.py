"""Whatever is wrong with a model's files is refused, naming file and tensor, before anything is read from them."""

from __future__ import annotations

import json
import logging
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from nodes.layout import INDEX, ModelError, read_contents, read_header
from tests.nodes.models import change, shard_files


def test_a_missing_weight_file_is_named(single: Path) -> None:
    (single / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        read_contents(single)


def test_missing_files_of_several_are_told_with_their_tensors(sharded: Path) -> None:
    lost = shard_files(sharded)[2]
    tensors = set(read_header(lost))
    lost.unlink()
    contents = read_contents(sharded)
    assert contents.absent == dict.fromkeys(tensors, lost.name)
    assert not tensors & set(contents.tensors)


def test_an_index_none_of_whose_files_is_there_is_refused(sharded: Path) -> None:
    for file in shard_files(sharded):
        file.unlink()
    with pytest.raises(ModelError, match=r"00001-of-\S+ is missing; with it tensor \S+ and \d+ more"):
        read_contents(sharded)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_named(single: Path, keep: int) -> None:
    file = single / "model.safetensors"
    os.truncate(file, keep if keep >= 0 else file.stat().st_size - 1)
    with pytest.raises(ModelError, match=r"model\.safetensors is truncated"):
        read_contents(single)


def test_a_truncated_file_names_the_tensor_that_is_cut(single: Path) -> None:
    file = single / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(ModelError, match=r"tensor model\.norm\.weight ends at"):
        read_contents(single)


def test_a_file_with_bytes_too_many_is_refused(single: Path) -> None:
    with open(single / "model.safetensors", "ab") as file:
        file.write(b"more")
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        read_contents(single)


def test_a_file_of_garbage_is_refused(single: Path) -> None:
    (single / "model.safetensors").write_bytes((9).to_bytes(8, "little") + b'{"a": 17}')
    with pytest.raises(ModelError, match="is not safetensors"):
        read_contents(single)


def test_a_stray_shard_file_is_named(sharded: Path) -> None:
    shutil.copy(shard_files(sharded)[0], sharded / "model-00077-of-00099.safetensors")
    with pytest.raises(ModelError, match=r"model-00077-of-00099\.safetensors is stray"):
        read_contents(sharded)


def test_shard_files_that_lost_their_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    with pytest.raises(ModelError, match=r"00001-of-\S+ is stray: there is no model\.safetensors\.index"):
        read_contents(sharded)


def test_a_tensor_that_isnt_where_the_index_says_is_named(sharded: Path) -> None:
    places = json.loads((sharded / INDEX).read_text())["weight_map"]
    change(sharded / INDEX, weight_map=places | {"model.norm.weight": shard_files(sharded)[0].name})
    with pytest.raises(ModelError, match=r"00001-of-.*lacks tensor model\.norm\.weight"):
        read_contents(sharded)


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "weights.bin", 7])
def test_an_index_that_names_other_places_is_refused(sharded: Path, file: object) -> None:
    change(sharded / INDEX, weight_map={"model.norm.weight": file})
    with pytest.raises(ModelError, match=INDEX.replace(".", r"\.")):
        read_contents(sharded)


def test_other_strays_are_let_lie_and_told(sharded: Path, caplog: pytest.LogCaptureFixture) -> None:
    (sharded / "consolidated.safetensors").write_bytes(b"another's")
    with caplog.at_level(logging.INFO):
        assert set(read_contents(sharded).tensors) == set(json.loads((sharded / INDEX).read_text())["weight_map"])
    assert "consolidated.safetensors isn't the model's" in caplog.text


def test_two_models_in_one_folder_are_refused(sharded: Path, tiny_path: Path) -> None:
    shutil.copy(tiny_path / "model.safetensors", sharded)
    with pytest.raises(ModelError, match="holds two models"):
        read_contents(sharded)


def test_an_index_without_places_is_refused(sharded: Path) -> None:
    change(sharded / INDEX, weight_map={})
    with pytest.raises(ModelError, match="has no weight_map"):
        read_contents(sharded)


def described(**entries: Any) -> bytes:
    """A file of 8 bytes of data with this header."""
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def entry(start: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"a": entry(0, 8, [3])}, r"tensor a of shape \[3\] needs 12 bytes and has 8"),
        ({"a": entry(0, 4, [1]), "b": entry(0, 8, [2])}, "tensor b starts at"),
        ({"a": entry(0, 4, [1])}, "longer than its tensors.*tensor a ends"),
        ({"b": entry(4, 8, [1])}, "tensor b starts at"),
        ({"a": entry(0, 12, [3])}, "truncated.*tensor a ends"),
        ({"a": entry(0, 8, [8], "F8_E4M3")}, "tensor a is of type F8_E4M3, which isn't supported"),
        ({"a": entry(8, 0, [-2])}, "tensor a is described as"),
        ({"a": entry(0, 8, [True, 2])}, "tensor a is described as"),
        ({"a": {"dtype": "F32", "shape": [2]}}, "tensor a is described as"),
        ({"a": entry(0, 8, [2], dtype=[])}, "tensor a is"),  # type: ignore[arg-type]
        ({"a": 7}, "tensor a is described as"),
    ],
)
def test_a_tensor_that_is_described_wrongly_is_named(tmp_path: Path, entries: dict[str, Any], words: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(described(**entries))
    with pytest.raises(ModelError, match=rf"model\.safetensors.*{words}"):
        read_contents(tmp_path)


def test_a_tensor_lies_where_its_header_says(tmp_path: Path) -> None:
    data = described(a=entry(0, 4, [1]), nothing=entry(4, 4, [0]), b=entry(4, 8, [2], "BF16"))
    (tmp_path / "model.safetensors").write_bytes(data)
    tensors = read_contents(tmp_path).tensors
    assert (tensors["a"].start, tensors["b"].start) == (len(data) - 8, len(data) - 4)
    assert (tensors["b"].num_bytes, tensors["b"].num_elements, tensors["nothing"].num_bytes) == (4, 2, 0)
