"""A client that leaves, at whatever moment, frees the caches of every node in seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.lab.site import Site, events

MODEL = "smollm-leaving"
LONG = "word " * 1500
FREED_WITHIN_S = 5


@pytest.fixture(
    scope="module", params=[("--relay-only",), ("--listen", "auto", "--no-relay")], ids=["relayed", "direct"]
)
def pair(
    request: pytest.FixtureRequest, site: Site, smollm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, str, Callable[[], list[int]]]]:
    name = f"{MODEL}-{len(request.param)}"
    link = tmp_path_factory.mktemp("leaving") / name
    link.symlink_to(smollm, target_is_directory=True)
    with site.mesh(link, ["0:15", "15:30"], *request.param) as nodes:

        def cached() -> list[int]:
            if "--listen" in request.param:
                ports = [node.wait_for(r"127\.0\.0\.1:(\d+)\n")[1] for node in nodes]
                return [
                    requests.get(f"http://127.0.0.1:{port}/health", timeout=5).json()["cached_tokens"] for port in ports
                ]
            return [site.health(f"{name}-{asked}", f"{name}-{1 - asked}")["cached_tokens"] for asked in (0, 1)]

        yield site, name, cached


def body(model: str, prompt: str, **parameters: Any) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {"model": model, "messages": [message], "temperature": 0, "max_tokens": 400, **parameters}


def assert_freed(cached: Callable[[], list[int]]) -> None:
    until = time.monotonic() + FREED_WITHIN_S
    while any(held := cached()):
        assert time.monotonic() < until, f"the nodes still hold {held} tokens"
        time.sleep(0.1)


def test_a_client_that_leaves_in_mid_stream_frees_every_cache(pair: Any) -> None:
    site, model, cached = pair
    asked = body(model, "Tell me a long story.", stream=True, meshnet={"trace": True})
    with site.post("/v1/chat/completions", asked, stream=True) as response:
        stream = (event for event in events(response) if event.get("meshnet", {}).get("ids"))
        for _ in range(5):
            next(stream)
        assert all(held > 0 for held in cached())
    assert_freed(cached)


def test_a_client_that_leaves_in_prefill_frees_every_cache(pair: Any) -> None:
    site, model, cached = pair
    with contextlib.suppress(requests.RequestException):
        requests.post(
            f"{site.url}/v1/chat/completions",
            json=body(model, LONG, stream=True),
            headers=site.headers,
            timeout=(5, 0.7),
            stream=True,
        ).close()
    assert_freed(cached)


def test_an_unstreamed_client_that_leaves_frees_every_cache(pair: Any) -> None:
    site, model, cached = pair
    with pytest.raises(requests.RequestException):
        requests.post(
            f"{site.url}/v1/chat/completions",
            json=body(model, "Tell me a long story."),
            headers=site.headers,
            timeout=(5, 1.5),
        )
    assert_freed(cached)


def test_a_finished_chat_leaves_nothing_behind(pair: Any) -> None:
    site, model, cached = pair
    assert site.chat(model, "Say hello.", max_tokens=5).ids
    assert_freed(cached)
