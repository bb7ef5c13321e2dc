"""What a record says is there is there; whatever can't be trusted counts as not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nodes.hub import sparse
from nodes.hub.sparse import Record, SparseFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.fixture
def record(path: Path) -> Path:
    """Of a file of 1000 bytes with 100 of them filled."""
    with SparseFile(path, 1000) as file:
        file.write(200, b"x" * 100)
        file.came_with('"tag"')
    return path.parent / sparse.RECORDS / "model.safetensors.json"


def test_it_has_its_size_from_the_start_and_remembers_what_came(path: Path, record: Path) -> None:
    assert path.read_bytes() == bytes(200) + b"x" * 100 + bytes(700)
    assert Record.read(path, 1000) == Record([(200, 300)], '"tag"')
    with SparseFile(path, 1000) as file:
        assert file.known.missing([(250, 400)]) == [(300, 400)]
        assert not file.known.is_complete(1000)
        file.write(0, bytes(1000))
        assert file.known.is_complete(1000)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda fields: fields | {"size": 999},
        lambda fields: fields | {"filled": [[900, 1001]]},
        lambda fields: fields | {"filled": [["a", 2]]},
        lambda fields: fields | {"filled": 7},
        lambda fields: {},
        lambda fields: [],
    ],
)
def test_a_record_that_doesnt_fit_says_nothing(path: Path, record: Path, spoil: Callable[[object], object]) -> None:
    record.write_text(json.dumps(spoil(json.loads(record.read_text()))))
    assert Record.read(path, 1000) == Record()
    record.write_text("{")
    assert Record.read(path, 1000) == Record()


def test_a_file_of_another_size_is_begun_anew(path: Path, record: Path) -> None:
    path.write_bytes(b"y" * 900)
    assert Record.read(path, 1000) == Record()
    with SparseFile(path, 1000) as file:
        assert not file.known.filled
    assert path.read_bytes() == bytes(1000)


def test_a_file_that_is_gone_is_begun_anew(path: Path, record: Path) -> None:
    path.unlink()
    with SparseFile(path, 1000) as file:
        assert not file.known.filled


def test_it_is_recorded_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "RECORD_EVERY_BYTES", 100)
    with SparseFile(path, 1000) as file:
        file.write(0, b"x" * 99)
        assert Record.read(path, 1000).filled == ()
        file.write(99, b"x")
        assert Record.read(path, 1000).filled == [(0, 100)]
        monkeypatch.setattr(sparse, "RECORD_EVERY_S", 0.0)
        file.write(100, b"x")
        assert Record.read(path, 1000).filled == [(0, 101)]
