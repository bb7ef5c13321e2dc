"""Nodes that leave their layers to the site: together they hold the model, also when one of them has gone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.lab.processes import Process
from tests.lab.site import Site
from tests.system.readings import Reading, wait_until

MODEL = "tiny-auto"
NUM_LAYERS = 7
# Tokens of caches that each must have room for, within the same memory: so many that only some layers fit.
KV_TOKENS = {"four": 100_000, "three": 130_000, "another": 100_000}
Layers = tuple[int, int]


@dataclass
class Mesh:
    site: Site
    model: Path
    nodes: dict[str, Process]

    def start(self, name: str, layers: str = "auto") -> None:
        """In float32, where a chat that moves says the same; direct, since their heartbeats come more often."""
        room = "--max-memory", "300M", "--max-kv-tokens", str(KV_TOKENS.get(name, 10_000))
        reach = "--listen", "auto", "--no-relay"
        self.nodes[name] = self.site.start_node(name, self.model, layers, *room, *reach, "--dtype", "float32")

    def stop(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.stop()
        self.site.nodes.remove(node)

    def rebalance(self, mode: str) -> None:
        self.site.rows("UPDATE tracker_languagemodel SET rebalancing = ? WHERE name = ?", mode, MODEL)

    def layers(self) -> dict[str, Layers]:
        rows = self.site.rows(
            "SELECT name, start_layer, end_layer FROM tracker_node JOIN tracker_shard ON node_id = tracker_node.id "
            "WHERE is_registered"
        )
        return {name: (start, end) for name, start, end in rows}

    def gap_without(self, *names: str) -> set[int]:
        held = [range(*layers) for name, layers in self.layers().items() if name not in names]
        return set(range(NUM_LAYERS)).difference(*held)

    def moves(self) -> list[str]:
        return [state for (state,) in self.site.rows("SELECT state FROM tracker_move ORDER BY id")]

    def accept(self, name: str, target: Layers) -> None:
        """A move as somebody has decided on it."""
        now, (start, end) = datetime.now(UTC).isoformat(" "), self.layers()[name]
        [[node, model]] = self.site.rows("SELECT id, model_id FROM tracker_node WHERE name = ?", name)
        self.site.rows("DELETE FROM tracker_move WHERE state = 'proposed'")
        self.site.rows(
            "INSERT INTO tracker_move (node_id, model_id, from_start, from_end, to_start, to_end, gain, reason, state,"
            " decided_by, outcome, created, changed)"
            " VALUES (?, ?, ?, ?, ?, ?, 1, 'a test', 'accepted', 'me', '', ?, ?)",
            *(node, model, start, end, *target, now, now),
        )


@pytest.fixture(scope="module")
def mesh(site: Site, tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Mesh]:
    model = tmp_path_factory.mktemp("auto") / MODEL
    model.symlink_to(tiny, target_is_directory=True)
    site.model(MODEL, wire_dtype="float32", prefill_chunk="8")
    made = Mesh(site, model, {})
    made.rebalance("off")
    for name in KV_TOKENS:
        made.start(name)
    for node in made.nodes.values():
        node.wait_for("Ready: layers")
    site.wait_for_model(MODEL)
    yield made
    for name in list(made.nodes):
        made.stop(name)


def test_nodes_of_different_size_hold_the_model_together_and_say_why(mesh: Mesh) -> None:
    layers = mesh.layers()

    assert not mesh.gap_without()
    assert all(end - start <= (3 if name == "three" else 4) for name, (start, end) in layers.items())
    for name, (start, end) in layers.items():
        mesh.nodes[name].wait_for(rf"The site chose layers {start}–{end - 1}: \w+")
    assert len(mesh.site.chat(MODEL, "What is the quick brown fox?", max_tokens=8).ids) == 8


def test_others_close_the_gap_of_one_that_has_left(mesh: Mesh) -> None:
    before = mesh.site.chat(MODEL, "What is the quick brown fox?", max_tokens=8)
    leaving = next(name for name in KV_TOKENS if mesh.gap_without(name))
    mesh.rebalance("automatic")
    mesh.stop(leaving)
    wait_until(lambda: MODEL not in mesh.site.model_names(), mesh.site)
    wait_until(lambda: MODEL in mesh.site.model_names(), mesh.site)

    assert mesh.site.chat(MODEL, "What is the quick brown fox?", max_tokens=8).ids == before.ids
    wait_until(lambda: set(mesh.moves()) == {"done"}, mesh.site)
    mesh.rebalance("off")


def test_a_node_moves_amid_a_chat_and_the_chat_goes_on_the_same(mesh: Mesh) -> None:
    mesh.start("whole", f"0:{NUM_LAYERS}")
    mesh.nodes["whole"].wait_for("Registered with")
    mesh.site.give_duty("whole", "paused")
    mesh.nodes["whole"].wait_for("Ready: layers")
    reading = Reading(MODEL)
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(reading.read, mesh.site)
        try:
            wait_until(lambda: reading.has_grown_or(done), mesh.site)
            moved = moved_away(mesh, reading, done)
        finally:
            reading.enough = len(reading.ids)
        done.result(30)
    assert moved in [it["node"] for it in mesh.site.story(reading.completion_id)["failovers"]]
    undisturbed = Reading(MODEL, enough=len(reading.ids))
    undisturbed.read(mesh.site)
    assert reading.ids == undisturbed.ids


def moved_away(mesh: Mesh, reading: Reading, done: Future[None]) -> str:
    """The node that moves; the chat has gone on a while after it did."""
    name = str(mesh.site.story(reading.completion_id)["hops"][-1]["node"])
    start, end = mesh.layers()[name]
    target = 0, end - start
    mesh.site.give_duty("whole", "works")
    num_lines = mesh.nodes[name].output.count("Ready: layers")
    mesh.accept(name, target)
    mesh.site.manage("tick", "--once")  # sooner than the site would by itself
    wait_until(lambda: mesh.moves()[-1] == "done" or done.done(), mesh.site)
    assert not done.done(), "the chat has ended before"
    assert mesh.nodes[name].output.count("Ready: layers") == num_lines + 1
    assert mesh.layers()[name] == target
    reading.num_seen = len(reading.ids)
    wait_until(lambda: reading.has_grown_or(done), mesh.site)
    assert len(reading.ids) > reading.num_seen, "the chat has ended before"
    return name
