"""A shard of a hub's model costs its own bytes and no others, whatever happens on the way, and is what a copy is."""

from __future__ import annotations

import io
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from huggingface_hub import constants
from pytest_django.fixtures import Settings

from nodes import sources
from nodes.hub import folder as hub_folder
from nodes.hub.client import Hub
from nodes.hub.fetch import HubUnreachable
from nodes.hub.folder import HubFolder
from nodes.hub.listing import HubId
from nodes.hub.sparse import Record
from nodes.layout import INDEX, ModelError
from nodes.management.commands.fetchmodel import Command
from nodes.sources import open_model
from nodes.tensors import TensorFile
from tests.lab.hub import LocalHub
from tests.nodes.models import make_tiny_llama

NAME = "acme/tiny"
MODEL = HubId(NAME)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight layers in about as many files, large beside their headers."""
    return make_tiny_llama(tmp_path_factory.mktemp("source"), num_layers=8, intermediate=384, max_shard_size="400KB")


@pytest.fixture(scope="module")
def single_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("single"), num_layers=8, intermediate=384, tied=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, settings: Settings) -> Path:
    settings.MESHNET_CACHE_DIR = str(tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where huggingface_hub keeps what it downloads."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "downloads"))
    return tmp_path / "downloads"


@pytest.fixture
def local(source: Path, single_source: Path) -> Iterator[LocalHub]:
    with LocalHub({NAME: source, "acme/single": single_source}) as hub:
        yield hub


@pytest.fixture
def hub(local: LocalHub) -> Hub:
    return Hub(local.url, timeout_s=5)


def open_hub(model: HubId, *, hub: Hub) -> HubFolder:
    folder = hub_folder.open_hub(model, hub=hub)
    assert isinstance(folder, HubFolder)
    return folder


def same_tensors(folder: HubFolder, source: Path, start: int, end: int) -> bool:
    """Byte for byte, those of these layers."""
    for name, tensor in folder.tensors_of(start, end).items():
        with TensorFile(folder.path / tensor.file) as ours, TensorFile(source / tensor.file) as theirs:
            if not ours.read(name).equal(theirs.read(name)):
                return False
    return True


def test_it_fetches_the_shards_bytes_and_no_others(local: LocalHub, hub: Hub, source: Path) -> None:
    folder = open_hub(MODEL, hub=hub)
    headers = local.sent_weights
    shard = sum(tensor.num_bytes for tensor in folder.tensors_of(0, 4).values())

    folder.prepare(0, 4)

    assert same_tensors(folder, source, 0, 4)
    assert headers <= 16384 * len(list(source.glob("*.safetensors")))
    assert shard - headers <= local.sent_weights - headers <= shard
    assert local.sent_weights < 0.6 * local.size(NAME)


def test_a_second_shard_costs_what_the_first_left_out(local: LocalHub, hub: Hub, source: Path) -> None:
    open_hub(MODEL, hub=hub).prepare(0, 5)
    before = local.sent_weights
    folder = open_hub(MODEL, hub=hub)
    folder.prepare(3, 8)
    assert local.sent_weights == local.size(NAME)  # every byte once
    assert local.sent_weights > before
    assert same_tensors(folder, source, 0, 8)


def test_a_shard_that_is_there_costs_one_question(local: LocalHub, hub: Hub) -> None:
    open_hub(MODEL, hub=hub).prepare(2, 5)
    before, questions = local.sent.copy(), len(local.asked)
    open_hub(MODEL, hub=hub).prepare(2, 5)
    assert local.sent == before
    assert len(local.asked) == questions + 1


def test_a_commit_by_its_hash_costs_none(local: LocalHub, hub: Hub) -> None:
    pinned = HubId(NAME, local.commit(NAME))
    open_hub(pinned, hub=hub).prepare(2, 5)
    questions = len(local.asked)
    open_hub(pinned, hub=hub).prepare(2, 5)
    assert len(local.asked) == questions


def test_its_fingerprint_is_a_copys(hub: Hub, source: Path, single_source: Path) -> None:
    assert open_hub(MODEL, hub=hub).fingerprint == open_model(source).fingerprint
    assert open_hub(HubId("acme/single"), hub=hub).fingerprint == open_model(single_source).fingerprint


def test_a_tied_tail_fetches_the_embedding_too(local: LocalHub, hub: Hub, single_source: Path) -> None:
    folder = open_hub(HubId("acme/single"), hub=hub)
    folder.prepare(7, 8)
    assert "model.embed_tokens.weight" in folder.tensors_of(7, 8)
    assert same_tensors(folder, single_source, 7, 8)
    assert local.sent_weights < 0.4 * local.size("acme/single")


def test_neighbouring_tensors_come_in_one_request(local: LocalHub, hub: Hub) -> None:
    folder = open_hub(HubId("acme/single"), hub=hub)
    before = len(local.asked)
    folder.prepare(3, 4)
    ranges = [asked for asked in local.asked[before:] if asked.is_cdn]
    assert len(ranges) == 1
    assert len(folder.tensors_of(3, 4)) == 9


def test_how_far_it_is_is_told_and_ends_at_all_of_it(hub: Hub) -> None:
    told: list[tuple[int, int]] = []
    open_hub(MODEL, hub=hub).prepare(0, 4, lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
    assert told == sorted(told)


def test_what_has_come_before_a_stop_is_kept(local: LocalHub, hub: Hub, source: Path) -> None:
    class Stop(Exception):
        pass

    def stop_half_way(done: int, total: int) -> None:
        if done > total // 2:
            raise Stop

    folder = open_hub(MODEL, hub=hub)
    with pytest.raises(Stop):
        folder.prepare(0, 8, stop_half_way)
    folder.prepare(0, 8)
    assert same_tensors(folder, source, 0, 8)
    assert local.sent_weights <= local.size(NAME) + 2 * 65536  # what was on its way is sent again


def test_two_nodes_of_a_machine_fetch_each_byte_once(local: LocalHub, hub: Hub, source: Path) -> None:
    """The first one is held up half-way; the second one waits, and sees what the first has brought it."""
    first, second = open_hub(MODEL, hub=hub), open_hub(MODEL, hub=hub)
    local.faults.hold_after_bytes = 100_000
    told: list[int] = []
    threads = [
        threading.Thread(target=first.prepare, args=(0, 5)),
        threading.Thread(target=second.prepare, args=(3, 8, lambda done, total: told.append(done))),
    ]
    threads[0].start()
    assert local.faults.held.wait(20)
    threads[1].start()
    local.faults.hold_after_bytes = None
    local.faults.release.set()
    for thread in threads:
        thread.join(30)
    assert same_tensors(first, source, 0, 5)
    assert same_tensors(second, source, 3, 8)
    assert local.sent_weights == local.size(NAME)
    assert told == sorted(told)


def test_offline_it_works_from_the_cache(local: LocalHub, hub: Hub, source: Path) -> None:
    open_hub(MODEL, hub=hub).prepare(0, 4)
    offline = Hub(local.url, is_offline=True)
    for model in (MODEL, HubId(NAME, local.commit(NAME))):
        folder = open_hub(model, hub=offline)
        folder.prepare(0, 4)
        assert same_tensors(folder, source, 0, 4)
    with pytest.raises(ModelError, match=r"HF_HUB_OFFLINE is set, and acme/tiny@\w+ isn't wholly in the cache"):
        folder.prepare(4, 8)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        open_hub(HubId("acme/single"), hub=offline)


def test_without_the_hub_the_last_known_commit_serves(
    local: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_hub(MODEL, hub=hub).prepare(0, 4)
    monkeypatch.setattr(hub_folder, "CACHED_PATIENCE_S", 0.0)
    local.faults.statuses = [503] * 20
    folder = open_hub(MODEL, hub=hub)
    folder.prepare(0, 4)
    assert "going on with commit" in caplog.text


def test_a_branch_that_moves_is_another_folder(local: LocalHub, hub: Hub, source: Path, tmp_path: Path) -> None:
    local.models[NAME] = moved = Path(shutil.copytree(source, tmp_path / "moved"))
    first_commit = local.commit(NAME)
    first = open_hub(MODEL, hub=hub)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"rope_theta": 20000.0}))

    second = open_hub(MODEL, hub=hub)
    assert second.path != first.path
    assert second.fingerprint != first.fingerprint
    assert open_hub(HubId(NAME, first_commit), hub=hub).path == first.path
    first.prepare(0, 2)  # from the commit it is pinned to
    assert same_tensors(first, source, 0, 2)


def test_the_folder_itself_can_be_named_and_is_filled_the_same(
    local: LocalHub, hub: Hub, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = open_hub(MODEL, hub=hub).path
    monkeypatch.setattr(Hub, "of_environment", lambda: hub)
    folder = open_model(path)
    folder.prepare(1, 3)  # never the zeros of a hole
    assert isinstance(folder, HubFolder)
    assert same_tensors(folder, source, 1, 3)
    assert sources.model_name(str(path)) == NAME


def test_a_file_that_came_whole_and_wrong_is_thrown_away(local: LocalHub, hub: Hub, source: Path) -> None:
    folder = open_hub(HubId("acme/single"), hub=hub)
    local.faults.corrupt = "model.safetensors"
    with pytest.raises(ModelError, match=r"model\.safetensors came with SHA-256 \w+, but the hub lists \w+: thrown"):
        folder.prepare(0, 8)
    local.faults.corrupt = ""
    open_hub(HubId("acme/single"), hub=hub).prepare(0, 8)


def test_a_file_that_came_whole_is_verified_also_when_it_was_killed_before_that(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_hub(HubId("acme/single"), hub=hub)
    folder.prepare(0, 8)
    file, size = folder.path / "model.safetensors", folder.listing.files["model.safetensors"].size
    assert Record.read(file, size).is_verified
    record = file.parent / ".filled" / "model.safetensors.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"is_verified": False}))
    with open(file, "r+b") as stream:
        stream.seek(size - 1)
        stream.write(b"!")
    with pytest.raises(ModelError, match="thrown away"):
        folder.prepare(0, 8)


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    local: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_hub(MODEL, hub=hub)
    before = local.sent_weights
    monkeypatch.setattr(hub_folder, "SPARE_DISK_BYTES", 1 << 60)
    with pytest.raises(OSError, match="MESHNET_CACHE_DIR"):
        folder.prepare(0, 4)
    assert local.sent_weights == before


def test_a_model_of_a_family_that_isnt_served_costs_its_config_only(
    local: LocalHub, hub: Hub, source: Path, tmp_path: Path
) -> None:
    local.models[NAME] = other = Path(shutil.copytree(source, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"model_type": "bloom"}))
    with pytest.raises(ModelError, match="'bloom' isn't supported"):
        open_hub(MODEL, hub=hub)
    assert local.sent_weights == 0


def test_a_model_without_safetensors_says_what_it_has(local: LocalHub, hub: Hub, source: Path, tmp_path: Path) -> None:
    local.models[NAME] = other = Path(shutil.copytree(source, tmp_path / "other"))
    for file in other.glob("*.safetensors*"):
        file.unlink()
    (other / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"has no model\.safetensors, nor an index.*it has tiny\.gguf; a GGUF file"):
        open_hub(MODEL, hub=hub)


def test_an_index_that_names_a_file_the_hub_hasnt_is_refused(
    local: LocalHub, hub: Hub, source: Path, tmp_path: Path
) -> None:
    local.models[NAME] = other = Path(shutil.copytree(source, tmp_path / "other"))
    lost = sorted(other.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ModelError, match=rf"{NAME} has no {lost.name}, which its {INDEX} names"):
        open_hub(MODEL, hub=hub)


def test_a_hub_that_never_answers_is_given_up(local: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_folder, "FIRST_PATIENCE_S", 0.0)
    local.faults.statuses = [503] * 20
    with pytest.raises(HubUnreachable, match="HTTP 503"):
        open_hub(MODEL, hub=hub)


def test_what_was_downloaded_whole_before_is_taken(
    local: LocalHub, hub: Hub, source: Path, downloads: Path, cache: Path
) -> None:
    commit, repository = local.commit(NAME), downloads / "models--acme--tiny"
    snapshot = shutil.copytree(source, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for asked in (hub, Hub(local.url, is_offline=True)):
        folder = hub_folder.open_hub(MODEL, hub=asked)
        folder.prepare(0, 8)
        assert folder.path == snapshot
        assert folder.fingerprint == open_model(source).fingerprint
    assert local.sent_weights == 0

    (snapshot / "tokenizer.json").write_text("{}")  # not all of what the hub lists
    assert hub_folder.open_hub(MODEL, hub=hub).path.is_relative_to(cache)


def test_fetchmodel_fetches_some_layers_and_prints_the_folder(
    local: LocalHub, hub: Hub, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "of_environment", lambda: hub)
    said, printed = io.StringIO(), io.StringIO()
    call_command(Command(), NAME, "--layers", "0:4", stdout=printed, stderr=said)
    path = Path(printed.getvalue().splitlines()[-1])
    assert same_tensors(open_hub(MODEL, hub=hub), source, 0, 4)
    assert local.sent_weights < 0.6 * local.size(NAME)
    assert f"headers of {NAME} at {local.commit(NAME)[:12]} from {local.url}" in said.getvalue()
    assert path.name.startswith("acme--tiny--")
    for wrong, words in (("4:99", "has layers 0:8"), ("4", "must be like 0:12")):
        with pytest.raises(CommandError, match=words):
            call_command(Command(), NAME, "--layers", wrong)
    with pytest.raises(CommandError, match="shows no model acme/other"):
        call_command(Command(), "acme/other")
