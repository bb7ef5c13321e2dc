"""A node is taken out of service while a chat runs through it: the chat goes on elsewhere, the node is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.lab.processes import Process
from tests.lab.site import Site
from tests.system.readings import Reading, wait_until

MODEL = "tiny-draining"
CUTS = {"head": "0:3", "tail": "3:7", "other-head": "0:3", "other-tail": "3:7"}


@pytest.fixture(scope="module")
def nodes(site: Site, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    """Direct ones, whose heartbeats come more often; in float32, where a replay changes no token."""
    folder = tmp_path_factory.mktemp("draining") / MODEL
    folder.symlink_to(tiny, target_is_directory=True)
    site.model(MODEL, wire_dtype="float32", prefill_chunk="8")
    options = "--listen", "auto", "--no-relay", "--dtype", "float32"
    started = {name: site.start_node(name, folder, layers, *options) for name, layers in CUTS.items()}
    with site.serving(MODEL, list(started.values())):
        yield started


def health(node: Process) -> dict[str, Any]:
    port = node.wait_for(r"127\.0\.0\.1:(\d+)\n")[1]
    return dict(requests.get(f"http://127.0.0.1:{port}/health", timeout=5).json())


def test_a_chat_leaves_a_tail_and_then_a_head_that_drain(site: Site, nodes: dict[str, Process]) -> None:
    reading = Reading(MODEL)
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(reading.read, site)
        wait_until(lambda: reading.has_grown_or(done), site)
        head, tail = (hop["node"] for hop in site.story(reading.completion_id)["hops"])
        try:
            assert left(site, reading, done, tail, nodes[tail]) == ("move", "move")
            assert left(site, reading, done, head, nodes[head]) == ("move", "draining")
        finally:
            reading.enough = len(reading.ids)
        done.result(30)
    site.give_duty(tail, "works")
    undisturbed = Reading(MODEL, enough=len(reading.ids))
    undisturbed.read(site)
    assert reading.ids == undisturbed.ids


def left(site: Site, reading: Reading, done: Future[None], name: str, node: Process) -> tuple[str, str]:
    """Drains the node until the chat has gone on without it and it holds nothing; how and why, as the story tells."""
    site.give_duty(name, "draining")
    failovers: list[dict[str, Any]] = []

    def has_left() -> bool:
        failovers[:] = [it for it in site.story(reading.completion_id)["failovers"] if it["node"] == name]
        return bool(failovers) or done.done()

    wait_until(has_left, site)
    assert failovers, "the chat has ended before"
    reading.num_seen = len(reading.ids)
    wait_until(lambda: reading.has_grown_or(done), site)
    wait_until(lambda: health(node)["sessions"] == 0, site)
    return failovers[0]["kind"], failovers[0]["code"]
