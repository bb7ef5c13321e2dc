"""A node is taken out of service while a chat runs through it: the chat goes on elsewhere, the node is left alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.lab.processes import Process
from tests.lab.site import Site, events

MODEL = "tiny-draining"
CUTS = {"head": "0:3", "tail": "3:7", "other-head": "0:3", "other-tail": "3:7"}
NUM_TOKENS = 3500  # more than are read: the chat still runs when all has happened
NEVER_ENDS = {"2": -100}  # its end token
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "temperature": 1.0,
    "seed": 11,
    "logit_bias": NEVER_ENDS,
    "stream": True,
    "meshnet": {"trace": True},
}


@dataclass
class Reading:
    """A chat's stream so far."""

    completion_id: str = ""
    ids: list[int] = field(default_factory=list)
    enough: int = NUM_TOKENS
    num_seen: int = 0

    def has_grown_or(self, done: Future[None]) -> bool:
        return len(self.ids) > self.num_seen + 5 or done.done()

    def read(self, site: Site) -> None:
        """Until there is enough of it; then the client leaves."""
        with site.post("/v1/chat/completions", ASKED | {"max_tokens": self.enough}, stream=True) as response:
            assert response.status_code == 200, response.text
            for event in events(response):
                assert "error" not in event, event
                self.completion_id = event["id"]
                self.ids += event.get("meshnet", {}).get("ids", [])
                if len(self.ids) >= self.enough:
                    return


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


def wait_until(holds: Callable[[], Any], site: Site, deadline_s: float = 60) -> None:
    until = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < until, site.log()[-3000:]
        time.sleep(0.05)


def test_a_chat_leaves_a_tail_and_then_a_head_that_drain(site: Site, nodes: dict[str, Process]) -> None:
    reading = Reading()
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
    undisturbed = Reading(enough=len(reading.ids))
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
