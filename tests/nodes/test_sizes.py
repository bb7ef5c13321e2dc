from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodes import memory, sizes
from nodes.facts import check_budget, node_facts, room_for_caches
from nodes.memory import DoesNotFit
from nodes.options import NodeOptions, UsageError
from nodes.sources import open_model
from nodes.weights import ModelError, ModelFolder
from tests.nodes.models import shard_files
from tests.nodes.sites import node_options


@pytest.fixture
def options(tiny_path: Path) -> NodeOptions:
    return node_options(tiny_path, start_layer=0, end_layer=0, dtype="bfloat16")


def test_layers_and_ends_add_up_to_the_model(tiny: ModelFolder, tiny_tied: ModelFolder) -> None:
    whole = sum(tensor.num_bytes for tensor in tiny.tensors.values())
    found = sizes.in_files(tiny)

    assert 6 * (found.layer_bytes or 0) + (found.head_bytes or 0) + (found.tail_bytes or 0) == whole
    tied = sizes.in_files(tiny_tied)
    assert tied.tail_bytes == (tied.head_bytes or 0) + 2 * 64, "the tail holds the embedding, too"


def test_a_layer_is_reckoned_as_this_node_holds_it_with_room_for_caches(
    options: NodeOptions, tiny: ModelFolder
) -> None:
    raw, dense = sizes.in_files(tiny), sizes.on_node(options, tiny)
    caches = memory.planned_cache_bytes(tiny.config, "bfloat16")

    assert dense == sizes.Sizes((raw.layer_bytes or 0) + caches, raw.head_bytes, raw.tail_bytes)
    assert (sizes.on_node(replace(options, weights="int4"), tiny).layer_bytes or 0) < (dense.layer_bytes or 0)
    asked = sizes.on_node(replace(options, max_kv_tokens=10), tiny)
    assert asked.layer_bytes == (raw.layer_bytes or 0) + 10 * 2 * 2 * 2 * 16


@pytest.mark.parametrize("num_layers", [1, 3, 6])
@pytest.mark.parametrize("weights", ["dense", "int8", "int4"])
def test_what_fits_the_budget_by_these_figures_has_the_planned_room_for_caches(
    options: NodeOptions, tiny: ModelFolder, weights: str, num_layers: int
) -> None:
    options = replace(options, weights=weights)
    found = sizes.on_node(options, tiny)
    needed = num_layers * (found.layer_bytes or 0) + (found.head_bytes or 0) + (found.tail_bytes or 0)
    limit = needed + memory.WORKING_BYTES
    if weights == "int4":  # where there is plenty, dense weights are kept beside them
        limit += 10**9
    held = replace(options, end_layer=num_layers, max_memory_bytes=limit)

    assert room_for_caches(held, tiny) >= memory.PLANNED_TOKENS


def test_the_budget_is_what_is_free_or_less_where_the_owner_says_so(
    options: NodeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 2 * 2**30
    monkeypatch.setattr("nodes.memory.available_bytes", lambda: free)
    assert sizes.budget_bytes(options) == free - memory.WORKING_BYTES
    assert sizes.budget_bytes(replace(options, max_memory_bytes=2**30)) == 2**30 - memory.WORKING_BYTES
    assert sizes.budget_bytes(replace(options, max_memory_bytes=2**40)) == free - memory.WORKING_BYTES

    monkeypatch.setattr("nodes.memory.available_bytes", lambda: 0)
    assert sizes.budget_bytes(options) is None
    assert sizes.budget_bytes(replace(options, max_memory_bytes=2**30)) == 2**30 - memory.WORKING_BYTES


def test_a_node_says_its_figures_and_no_layers_where_the_site_chooses_them(
    options: NodeOptions, tiny: ModelFolder
) -> None:
    options = replace(options, max_memory_bytes=2**30)
    said = node_facts(options, tiny, None).as_message()
    here, in_files = sizes.on_node(options, tiny), sizes.in_files(tiny)

    assert said["layers"] == "auto"
    assert not {"start_layer", "end_layer", "picks_layers"} & set(said)
    assert said["budget_bytes"] == 2**30 - memory.WORKING_BYTES
    for name in ("layer_bytes", "head_bytes", "tail_bytes"):
        assert said[name] == getattr(here, name)
        assert said["model"][name] == getattr(in_files, name)


def test_without_memory_for_one_layer_nobody_is_asked(
    options: NodeOptions, tiny: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_budget(options, tiny)
    with pytest.raises(DoesNotFit, match=r"one layer of .* with its caches needs 0\.2 GiB .* this node has 0\.1 GiB"):
        check_budget(replace(options, max_memory_bytes=100_000_000), tiny)
    monkeypatch.setattr("nodes.memory.available_bytes", lambda: 0)
    with pytest.raises(UsageError, match="--layers auto needs --max-memory here"):
        check_budget(options, tiny)


def test_a_folder_with_some_of_the_files_says_what_it_knows_and_cant_be_chosen_from(
    options: NodeOptions, sharded: Path
) -> None:
    whole = sizes.in_files(open_model(sharded))
    shard_files(sharded)[-1].unlink()
    rest = open_model(sharded)

    assert sizes.in_files(rest) == replace(whole, tail_bytes=None)
    with pytest.raises(ModelError, match="is missing"):
        check_budget(options, rest)


def test_of_a_mixture_of_experts_those_that_are_asked_are_read(tiny: ModelFolder) -> None:
    whole = sizes.read_elements(tiny)
    tensors = {name.replace(".mlp.", ".mlp.experts.0."): tensor for name, tensor in tiny.tensors.items()}
    config = SimpleNamespace(num_hidden_layers=6, num_experts_per_tok=2, num_local_experts=8)
    experts = sum(tensor.num_elements for name, tensor in tiny.tensors.items() if ".layers.0.mlp." in name)

    assert whole == tiny.num_elements(2, 3)
    assert sizes.read_elements(replace(tiny, tensors=tensors, config=config)) == whole - experts + experts // 4
