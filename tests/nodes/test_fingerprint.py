"""Copies are the same model, another byte is another one, and nothing is read twice."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from nodes.fingerprint import combine
from nodes.sources import open_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, settings: Settings) -> Path:
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def single(tiny_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path, tmp_path / "single"))


def test_the_fingerprint_is_the_hash_of_sorted_names_and_hashes(single: Path) -> None:
    names = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors"]
    names += ["tokenizer.json", "tokenizer_config.json"]
    lines = "".join(f"{name} {hashlib.sha256((single / name).read_bytes()).hexdigest()}\n" for name in names)
    assert open_model(single).fingerprint == hashlib.sha256(lines.encode()).hexdigest()
    assert combine([("b", "2"), ("a", "1")]) == hashlib.sha256(b"a 1\nb 2\n").hexdigest()


def test_copies_have_one_fingerprint_whatever_lies_beside_them(single: Path, tmp_path: Path) -> None:
    shutil.copytree(single, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("mine")
    assert open_model(single).fingerprint == open_model(tmp_path / "copy").fingerprint


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_another_byte_is_another_fingerprint(single: Path, name: str) -> None:
    before = open_model(single).fingerprint
    data = (single / name).read_bytes()
    (single / name).write_bytes(flip(data) if name == "model.safetensors" else data + b" ")
    assert open_model(single).fingerprint != before


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_fingerprint_is_computed_once_while_size_and_time_stay(single: Path, cache: Path) -> None:
    before = open_model(single).fingerprint
    file, status = single / "model.safetensors", (single / "model.safetensors").stat()
    file.write_bytes(flip(file.read_bytes()))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert open_model(single).fingerprint == before  # not read again
    os.utime(file)
    assert open_model(single).fingerprint != before
    assert len(list((cache / "fingerprints").iterdir())) == 1


@pytest.mark.parametrize("text", ["{", "[]", '{"model.safetensors": 7}', "\\xff"])
def test_a_broken_note_of_hashes_is_made_again(single: Path, cache: Path, text: str) -> None:
    before = open_model(single).fingerprint
    note = next((cache / "fingerprints").iterdir())
    note.write_text(text)
    assert open_model(single).fingerprint == before
