from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodes import facts, memory
from nodes.options import NodeOptions, UsageError
from nodes.weights import ModelFolder
from tests.nodes.sites import node_options


@pytest.fixture
def options(tiny_path: Path) -> NodeOptions:
    return node_options(tiny_path, start_layer=2, end_layer=6, name="one", num_threads=2)


def test_a_node_says_what_it_holds_and_how_it_is_reached(options: NodeOptions, tiny: ModelFolder) -> None:
    said = facts.node_facts(options, tiny, "http://127.0.0.1:7002")

    assert (said.start_layer, said.end_layer, said.endpoint, said.relay) == (2, 6, "http://127.0.0.1:7002", True)
    assert (said.threads, said.dtype, said.weights, said.version) == (2, "float32", "dense", facts.VERSION)
    assert said.model.fingerprint == tiny.fingerprint
    assert (said.model.num_layers, said.model.hidden_size) == (6, 64)


def test_room_for_caches_is_what_memory_leaves(
    options: NodeOptions, tiny: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.memory.available_bytes", lambda: 0)

    assert facts.room_for_caches(options, tiny) == memory.MAX_CACHED_TOKENS


def test_the_tracker_is_told_how_weights_are_kept(options: NodeOptions, tiny: ModelFolder) -> None:
    int4 = replace(options, weights="int4")

    assert facts.node_facts(int4, tiny, None).as_message()["weights"] == "int4"


def test_dense_weights_are_kept_beside_int4_where_memory_allows(
    options: NodeOptions, tiny: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    int4 = replace(options, weights="int4")
    for available, kept in ((10**9, True), (10**5, False), (0, False)):
        monkeypatch.setattr("nodes.memory.available_bytes", lambda available=available: available)
        assert facts.keeps_dense(int4, tiny) is kept
        assert not facts.keeps_dense(options, tiny)


def test_room_for_caches_is_what_was_asked_for(options: NodeOptions, tiny: ModelFolder) -> None:
    assert facts.room_for_caches(replace(options, max_kv_tokens=777), tiny) == 777
    with pytest.raises(memory.DoesNotFit, match=r"layers 2–5 of .* leave room for \d+ tokens .* lower it"):
        facts.room_for_caches(replace(options, max_kv_tokens=10**12), tiny)


def test_what_its_owner_gives_is_what_there_is(options: NodeOptions, tiny: ModelFolder) -> None:
    given = replace(options, max_memory_bytes=memory.WORKING_BYTES + 1000)
    with pytest.raises(memory.DoesNotFit, match=r"need 0\.2 GiB .*, and 0\.2 GiB are what --max-memory allows; take"):
        facts.room_for_caches(given, tiny)

    assert facts.room_for_caches(replace(given, max_memory_bytes=10**9), tiny) < memory.MAX_CACHED_TOKENS


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    assert project["version"] == facts.VERSION


def test_layers_that_the_model_hasnt_are_a_usage_error(options: NodeOptions, tiny: ModelFolder) -> None:
    with pytest.raises(UsageError, match="has layers 0:6"):
        facts.room_for_caches(replace(options, end_layer=7), tiny)


def test_the_address_towards_a_tracker_here_is_here() -> None:
    assert facts.address_towards("http://127.0.0.1:1") == "127.0.0.1"


def test_the_lean_executor_is_refused_before_anything_is_loaded_where_it_doesnt_cover(
    options: NodeOptions, tiny: ModelFolder
) -> None:
    other = replace(tiny, config=SimpleNamespace(model_type="bloom"))

    facts.check_executor(options, other)
    facts.check_executor(replace(options, executor="lean"), tiny)
    with pytest.raises(UsageError, match=r"--executor lean doesn't cover model_type 'bloom'.*take auto"):
        facts.check_executor(replace(options, executor="lean"), other)
