"""A GGUF file's header is read by hand; whatever is wrong with it is said with the file's name, and the tensor's."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from gguf import GGUFReader, GGUFWriter

from nodes.gguf.file import Array, read_header
from nodes.weights import ModelError
from tests.nodes.ggufs import finish, make_gguf

BEGIN = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)  # one tensor, no metadata
NAME = struct.pack("<Q", 1) + b"t"


@pytest.fixture(scope="module")
def path(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gguf(tiny_path, tmp_path_factory.mktemp("gguf") / "x.gguf", kind="Q8_0")


def test_it_reads_what_the_formats_own_reader_reads(path: Path) -> None:
    ours, theirs = read_header(path), GGUFReader(path)
    assert len(ours.tensors) == len(theirs.tensors)
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert (found.shape, found.type) == (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type)
        assert (found.start, found.num_bytes) == (tensor.data_offset, tensor.n_bytes)
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        value = ours.metadata[key]
        expected = field.contents()
        assert (ours.array(key) if isinstance(value, Array) else value) == pytest.approx(expected)


def test_every_type_of_metadata_is_read(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    plain = [255, -1, 65535, -2, 1 << 31, -3, 1 << 63, -4, 1e-5, 0.1, True, "é"]
    names = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64", "bool"]
    for key, name, value in zip("abcdefghijkl", [*names, "string"], plain, strict=True):
        getattr(writer, f"add_{name}")(key, value)
    arrays: dict[str, list[Any]] = {"m": [1, 2], "n": ["漢", ""], "o": [0.5]}
    for key, values in arrays.items():
        writer.add_array(key, values)
    finish(writer)
    header = read_header(tmp_path / "x.gguf")
    assert [header.metadata[key] for key in "abcdefghijkl"] == plain
    assert {key: header.array(key) for key in arrays} == arrays
    assert header.array("nothing") == []


@pytest.mark.parametrize("size", [0, 3, 4, 10, 24, 30, 500, 3000])
def test_a_header_that_is_cut_off_is_refused(path: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"cut\.gguf is truncated or not GGUF"):
        read_header(tmp_path / "cut.gguf")


def test_a_cut_off_file_names_a_tensor_that_is_lost(path: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"cut\.gguf is truncated: \d+ bytes, but tensor [a-z0-9_.]+ ends at \d+"):
        read_header(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\3\4" + bytes(60), "isn't GGUF: it begins with b'PK"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "the other byte order"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + NAME + struct.pack("<IQ", 8, 1 << 62), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + NAME + struct.pack("<I", 99), "a value of type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + NAME + struct.pack("<IIQ", 9, 9, 1), "an array of type 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + NAME + struct.pack("<IIQ", 9, 4, 1 << 62), "beyond its end"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + NAME + struct.pack("<IQ", 8, 1) + b"\xff", "can't decode"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (NAME + struct.pack("<II", 4, 7)) * 2, "twice"),
        (BEGIN + NAME + struct.pack("<IQIQ", 1, 8, 0, 1 << 62), "tensor t ends at"),
        (BEGIN + NAME + struct.pack("<IQIQ", 1, 8, 4, 0), "tensor t is of type 4, which isn't known"),
        (BEGIN + NAME + struct.pack("<IQIQ", 1, 33, 2, 0), "tensor t has rows of 33 numbers; Q4_0 comes in 32s"),
        (BEGIN + NAME + struct.pack("<IQIQ", 1, 0, 0, 0), "tensor t has rows of 0 numbers"),
        (BEGIN + NAME + struct.pack("<I", 5), "tensor t has 5 dimensions"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "odd.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=r"odd\.gguf") as caught:
        read_header(tmp_path / "odd.gguf")
    assert words in str(caught.value)


def test_random_damage_to_a_header_is_a_model_error_or_none(path: Path, tmp_path: Path) -> None:
    random, end = numpy.random.default_rng(3), read_header(path).header_bytes
    good = path.read_bytes()[:end]
    for number in range(100):
        damaged = bytearray(good)
        for at in random.integers(0, end, 3):
            damaged[at] = random.integers(0, 256)
        (tmp_path / f"{number}.gguf").write_bytes(damaged)
        os.truncate(tmp_path / f"{number}.gguf", path.stat().st_size)
        with contextlib.suppress(ModelError):
            read_header(tmp_path / f"{number}.gguf")


def test_data_begin_at_the_alignment_that_the_file_says(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_custom_alignment(128)
    writer.add_tensor("t", numpy.arange(4, dtype=numpy.float32))
    finish(writer)
    [tensor] = read_header(tmp_path / "x.gguf").tensors.values()
    assert tensor.start % 128 == 0
    with open(tmp_path / "x.gguf", "rb") as file:
        assert numpy.frombuffer(os.pread(file.fileno(), 16, tensor.start), numpy.float32).tolist() == [0, 1, 2, 3]
