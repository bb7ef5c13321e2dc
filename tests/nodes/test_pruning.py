"""The cache of models: what is said of it, what may go, and that nothing goes which somebody works with."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django.fixtures import Settings

from nodes import pruning, uses
from nodes.management.commands.fetchmodel import Command
from nodes.sources import opened_model
from tests.nodes.ggufs import make_gguf

Make = Callable[..., Path]


@pytest.fixture
def cache(tmp_path: Path, settings: Settings) -> Path:
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")
    return tmp_path / "cache" / "models"


@pytest.fixture
def make(cache: Path) -> Make:
    def made(folder_name: str, num_bytes: int = 8192, **origin: str) -> Path:
        folder = cache / folder_name
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(os.urandom(num_bytes))
        if origin:
            (folder / "meshnet.json").write_text(json.dumps(origin))
        return folder

    return made


def run(*arguments: str) -> list[str]:
    printed = io.StringIO()
    call_command(Command(), *arguments, stdout=printed)
    return printed.getvalue().splitlines()


def test_it_says_what_would_go_and_deletes_nothing_before_it_is_told_to(make: Make) -> None:
    small, large = make("small"), make("acme--tiny--1234", 50_000_000, name="acme/tiny", source="acme/tiny@abc")

    said = run("--prune")
    assert [line.split(",")[0] for line in said[:-1]] == ["would go: acme/tiny", "would go: small"]
    assert said[-1] == "50.0 MB would be freed; --yes deletes them"
    assert small.exists()
    assert large.exists()

    said = run("--prune", "--yes")
    assert [line.split(",")[0] for line in said] == ["is deleted: acme/tiny", "is deleted: small", "50.0 MB freed"]
    assert not small.exists()
    assert not large.exists()
    assert run("--prune") == ["0.0 MB would be freed; --yes deletes them"]


@pytest.mark.parametrize("name", ["acme/tiny", "acme/tiny@abc", "acme--tiny--1234"])
def test_what_is_to_be_kept_is_kept_by_any_of_its_names(make: Make, name: str) -> None:
    kept, other = make("acme--tiny--1234", name="acme/tiny", source="acme/tiny@abc"), make("other")

    assert run("--prune", "--yes", "--keep", name)[0].startswith("is kept: acme/tiny, ")
    assert kept.exists()
    assert not other.exists()


def test_a_name_that_isnt_there_is_a_mistake_and_nothing_is_deleted(make: Make) -> None:
    folder = make("other")

    with pytest.raises(CommandError, match="--keep acme/tiny: no such model"):
        run("--prune", "--yes", "--keep", "acme/tiny")
    with pytest.raises(CommandError, match="to keep other, say --keep other"):
        run("--prune", "--yes", "other")
    with pytest.raises(CommandError, match="name a model, or say --prune"):
        run()
    assert folder.exists()


def test_what_somebody_works_with_stays_until_it_isnt_needed_any_more(
    cache: Path, tiny_path: Path, tmp_path: Path
) -> None:
    file = make_gguf(tiny_path, tmp_path / "tiny.gguf")
    with opened_model(str(file)) as folder, opened_model(str(file)):
        assert folder.path.parent == cache
        assert run("--prune", "--yes")[0].startswith("is in use: tiny, ")
        assert folder.path.is_dir()

    assert run("--prune", "--yes")[0].startswith("is deleted: tiny, ")
    assert not folder.path.exists()


def test_one_that_is_taken_away_while_it_is_opened_is_made_again(cache: Path, tiny_path: Path, tmp_path: Path) -> None:
    file = make_gguf(tiny_path, tmp_path / "tiny.gguf")
    with opened_model(str(file)) as folder:
        path = folder.path
    is_open = threading.Event()

    def work() -> None:
        with opened_model(str(file)) as folder:
            folder.prepare(0, 1)
            is_open.set()

    with uses.free_to_take(path) as is_free:
        assert is_free
        thread = threading.Thread(target=work)
        thread.start()
        assert not is_open.wait(0.2)
        path.rename(tmp_path / "taken")
    thread.join(20)
    assert is_open.is_set()
    assert list(path.glob("*.safetensors"))


def test_a_cache_that_is_only_read_serves_all_the_same(cache: Path, tiny_path: Path, tmp_path: Path) -> None:
    file = make_gguf(tiny_path, tmp_path / "tiny.gguf")
    cache.mkdir(parents=True)
    (cache / ".in-use").touch()  # stands for a folder that can't be written in
    with opened_model(str(file)) as folder:
        assert folder.path.parent == cache


def test_of_folders_outside_the_cache_nobody_holds_anything(cache: Path, tiny_path: Path) -> None:
    with opened_model(tiny_path):
        assert not cache.exists()


def test_what_was_begun_and_left_goes_once_nobody_has_written_to_it_for_long(make: Make) -> None:
    left, fresh = make(".making-hub-acme--tiny"), make(".making-abc")
    for path in (left, left / "weights"):
        os.utime(path, times=(time.time() - 2 * pruning.ABANDONED_S,) * 2)
    assert pruning.cached_models() == []

    assert run("--prune", "--yes")[0].startswith("is deleted: .making-hub-acme--tiny, ")
    assert fresh.exists()
    assert not left.exists()


def test_holes_take_no_room(make: Make) -> None:
    folder = make("sparse")
    with open(folder / "weights", "wb") as file:
        file.truncate(1 << 30)

    [model] = pruning.cached_models()
    assert model.num_bytes < 1 << 20
    assert pruning.in_words([model]).startswith("1 model takes 0.0 MB")


def test_another_cache_may_be_named(make: Make, tmp_path: Path, settings: Settings) -> None:
    make("here")

    assert run("--prune", "--cache-dir", str(tmp_path / "elsewhere")) == ["0.0 MB would be freed; --yes deletes them"]
