"""The site is told to stop while chats run: what isn't finished in time is told so, and the record says so too."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.lab.processes import Process
from tests.lab.site import Site, events

GRACE_S = 4.0
NUM_SHORT = 60  # tokens that take a fraction of it


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "stopping", FAILOVER_WAIT_S="60")
    site.serve_options = ("--grace", str(GRACE_S))
    with site:
        yield site


@pytest.fixture
def mesh(own_site: Site, tiny: Path) -> Iterator[tuple[Process, Process]]:
    head, tail = (own_site.start_node(name, tiny, cut) for name, cut in (("head", "0:4"), ("tail", "4:7")))
    for node in (head, tail):
        node.wait_for("Ready: layers")
    own_site.wait_for_model(tiny.name)
    yield head, tail
    for node in (head, tail):
        if node.is_running:
            node.stop()


@pytest.mark.parametrize("loses_head", [False, True], ids=["slow", "head lost"])
def test_chats_that_a_stop_cuts_short_end_with_draining_and_shorter_ones_are_finished(
    own_site: Site, mesh: tuple[Process, Process], tiny: Path, loses_head: bool
) -> None:
    head, tail = mesh
    said = [{"role": "user", "content": "Tell me a long story."}]
    asked: dict[str, Any] = {"model": tiny.name, "messages": said, "max_tokens": 3000, "logit_bias": {"2": -100}}
    short = asked | {"max_tokens": NUM_SHORT, "stream": True}
    with ThreadPoolExecutor(1) as thread:
        unstreamed = thread.submit(own_site.post, "/v1/chat/completions", asked)
        with (
            own_site.post("/v1/chat/completions", asked | {"stream": True}, stream=True) as response,
            own_site.post("/v1/chat/completions", short, stream=True) as short_response,
        ):
            stream, short_stream = events(response), events(short_response)
            completion_id, _ = next(stream)["id"], next(short_stream)
            assert own_site.process
            own_site.process.send(signal.SIGTERM)
            own_site.process.wait_for("Stopping: ")
            *_, finished = short_stream
            assert finished["choices"][0]["finish_reason"] == "length", "it needed less than the grace"
            tail.send(signal.SIGSTOP)  # so that none of the others can end
            stopped = time.monotonic()
            if loses_head:
                head.kill()
            *_, last = stream
        took_s = time.monotonic() - stopped
        refused = unstreamed.result(30)
    assert last["error"]["code"] == "draining"
    assert took_s < GRACE_S / 2 or not loses_head
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert refused.headers["Retry-After"]
    assert own_site.process.wait(10) == 0
    own_site.start()
    story = own_site.story(completion_id)
    assert (story["state"], story["error"]["code"]) == ("failed", "draining")


def test_a_node_that_is_told_to_stop_when_it_wakes_up_stops(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    node = site.start_node("frozen", alias(tiny, "tiny-frozen"), "0:7")
    node.wait_for(r"Ready: layers")
    for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM):
        node.send(number)
    assert node.wait(30) == 0
    assert "Unregistered" in node.output
    site.nodes.remove(node)
