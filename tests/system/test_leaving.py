"""A client that leaves, at whatever moment, frees the caches of every node in seconds."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.lab.processes import Process
from tests.lab.site import Site, events

MODEL = "smollm-leaving"
LONG = "word " * 1500
FREED_WITHIN_S = 5


@dataclass
class Pair:
    """Two nodes of a model. `health`: what the first or the second says of itself."""

    site: Site
    model: str
    nodes: list[Process]
    health: Callable[[int], dict[str, Any]]

    def held(self, *asked: int) -> list[tuple[int, int]]:
        """(cached, reserved) tokens of these nodes, of both where none is named."""
        told = [self.health(number) for number in asked or (0, 1)]
        return [(one["cached_tokens"], one["reserved_tokens"]) for one in told]

    def wait_until(self, is_so: Callable[[], bool], deadline_s: float = FREED_WITHIN_S) -> None:
        until = time.monotonic() + deadline_s
        while not is_so():
            assert time.monotonic() < until
            time.sleep(0.1)

    def assert_freed(self, *asked: int) -> None:
        until = time.monotonic() + FREED_WITHIN_S
        while any(held := [any(tokens) for tokens in self.held(*asked)]):
            assert time.monotonic() < until, f"nodes still hold (cached, reserved) tokens: {self.held(*asked)}, {held}"
            time.sleep(0.1)


@pytest.fixture(
    scope="module", params=[("--relay-only",), ("--listen", "auto", "--no-relay")], ids=["relayed", "direct"]
)
def pair(
    request: pytest.FixtureRequest, site: Site, smollm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    name = f"{MODEL}-{len(request.param)}"
    link = tmp_path_factory.mktemp("leaving") / name
    link.symlink_to(smollm, target_is_directory=True)
    with site.mesh(link, ["0:15", "15:30"], *request.param) as nodes:

        def health(asked: int) -> dict[str, Any]:
            if "--listen" in request.param:
                port = nodes[asked].wait_for(r"127\.0\.0\.1:(\d+)\n")[1]
                return dict(requests.get(f"http://127.0.0.1:{port}/health", timeout=5).json())
            return site.health(f"{name}-{asked}", f"{name}-{1 - asked}")

        yield Pair(site, name, nodes, health)


def body(model: str, prompt: str, **parameters: Any) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {"model": model, "messages": [message], "temperature": 0, "max_tokens": 400, **parameters}


def leave(pair: Pair, asked: dict[str, Any], after_s: float) -> None:
    """A client that gives up: its socket is closed while the answer is awaited."""
    with contextlib.suppress(requests.RequestException):
        requests.post(
            f"{pair.site.url}/v1/chat/completions",
            json=asked,
            headers=pair.site.headers,
            timeout=(5, after_s),
            stream=bool(asked.get("stream")),
        ).close()


def test_a_client_that_leaves_in_mid_stream_frees_every_cache(pair: Pair) -> None:
    asked = body(pair.model, "Tell me a long story.", stream=True, meshnet={"trace": True})
    with pair.site.post("/v1/chat/completions", asked, stream=True) as response:
        stream = (event for event in events(response) if event.get("meshnet", {}).get("ids"))
        for _ in range(5):
            next(stream)
        assert all(cached > 0 and reserved > 400 for cached, reserved in pair.held())
    pair.assert_freed()


def test_a_client_that_leaves_in_prefill_frees_every_cache(pair: Pair) -> None:
    leave(pair, body(pair.model, LONG, stream=True), 0.7)
    pair.assert_freed()


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "unstreamed"])
def test_a_client_that_leaves_before_the_first_token_frees_the_head_at_once_and_a_node_that_hangs_when_it_goes_on(
    pair: Pair, is_streamed: bool
) -> None:
    tail = pair.nodes[1]
    tail.send(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as threads:
            asked = body(pair.model, "Tell me a long story.", stream=is_streamed)
            left = threads.submit(leave, pair, asked, 1.5)
            pair.wait_until(lambda: all(pair.held(0)[0]))
            left.result(30)
        pair.assert_freed(0)
    finally:
        tail.send(signal.SIGCONT)
    pair.assert_freed()
    pair.site.forgive()


def test_an_unstreamed_client_that_leaves_frees_every_cache(pair: Pair) -> None:
    leave(pair, body(pair.model, "Tell me a long story."), 1.5)
    pair.assert_freed()


def test_a_finished_chat_leaves_nothing_behind(pair: Pair) -> None:
    assert pair.site.chat(pair.model, "Say hello.", max_tokens=5).ids
    pair.assert_freed()
