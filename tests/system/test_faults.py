"""The relay breaks in the middle of a generation: the hop goes direct, or the session ends with one typed error.

The head speaks version 1 of the wire, so that its hops have connections of their own, which can be cut alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.faultproxy import FaultProxy
from tests.lab.processes import Process
from tests.lab.site import Site, assemble, events

MODEL = "smollm-faults"
PROMPT = "Tell me about the sea."
NUM_TOKENS = 30
DEADLINE_S = 20
Mesh = tuple[Site, FaultProxy, list[Process]]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, FaultProxy]]:
    """A site whose relay nodes reach only through a proxy that can break."""
    site = Site(tmp_path_factory.mktemp("faults"), REQUEST_DEADLINE_S=str(DEADLINE_S), FAILOVER_WAIT_S="2")
    with FaultProxy(("127.0.0.1", site.port)) as proxy:
        site.env["RELAY_URL"] = f"ws://127.0.0.1:{proxy.port}"
        with site:
            yield site, proxy


@contextmanager
def mesh(proxied: tuple[Site, FaultProxy], folder: Path, tail_reach: tuple[str, ...]) -> Iterator[Mesh]:
    site, proxy = proxied
    proxy.heal("/rpc")
    nodes = [
        site.start_node(f"{folder.name}-head", folder, "0:15", "--drafts", "off", MESHNET_WIRE_VERSIONS="1"),
        site.start_node(f"{folder.name}-tail", folder, "15:30", *tail_reach),
    ]
    with site.serving(folder.name, nodes):
        yield site, proxy, nodes


def disturbed(site: Site, model: str, disturb: Any) -> list[dict[str, Any]]:
    """The events of a chat in which `disturb` is called after the fifth token."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0}
    body |= {"max_tokens": NUM_TOKENS, "stream": True, "meshnet": {"trace": True}}
    seen, num_tokens = [], 0
    with site.post("/v1/chat/completions", body, stream=True) as response:
        for event in events(response):
            seen.append(event)
            num_tokens += len(event.get("meshnet", {}).get("ids", []))
            if num_tokens >= 5 and disturb:
                disturb()
                disturb = None
    return seen


def test_a_cut_relay_is_replaced_by_direct_http_within_the_generation(
    proxied: tuple[Site, FaultProxy], smollm: Path, alias: Any
) -> None:
    folder = alias(smollm, MODEL)
    with mesh(proxied, folder, ("--listen", "auto")) as (site, proxy, nodes):
        undisturbed = site.chat(MODEL, PROMPT, max_tokens=NUM_TOKENS)
        assert undisturbed.paths == ["local", "relay"]

        def cut() -> None:
            proxy.fail("/rpc", "refuse")
            assert proxy.cut("/rpc") > 0

        answer = assemble(iter(disturbed(site, MODEL, cut)))
        warning = nodes[0].wait_for(r"WARNING.*", 5)[0]
    assert answer.ids == undisturbed.ids
    assert answer.text == undisturbed.text
    assert answer.paths == ["local", "direct"]
    assert "relay" in warning
    assert "direct" in warning


@pytest.mark.parametrize("tail_reach", [("--relay-only",), ("--listen", "auto")], ids=["relay-only", "listening"])
def test_both_paths_cut_end_the_session_with_one_typed_error_in_time(
    proxied: tuple[Site, FaultProxy], smollm: Path, alias: Any, tail_reach: tuple[str, ...]
) -> None:
    folder = alias(smollm, f"{MODEL}-both-{len(tail_reach)}")
    with mesh(proxied, folder, tail_reach) as (site, proxy, nodes):

        def cut() -> None:
            proxy.fail("/rpc", "refuse")
            proxy.cut("/rpc")
            if "--listen" in tail_reach:
                nodes[1].kill()

        started = time.monotonic()
        seen = disturbed(site, folder.name, cut)
        took_s = time.monotonic() - started
    errors = [event["error"] for event in seen if "error" in event]
    assert len(errors) == 1
    assert errors[0]["code"] == "node_failed"
    assert "layers 15–29" in errors[0]["message"]
    [(details,)] = site.rows("SELECT error_details FROM tracker_chatsession ORDER BY id DESC LIMIT 1")
    assert "relay" in details, "the cause on each path is for operators"
    assert ("no direct endpoint" in details) == (tail_reach == ("--relay-only",))
    assert took_s < DEADLINE_S
    assert "error" in seen[-1] or seen[-1].get("meshnet"), "nothing follows the error but its trace"


def test_a_black_hole_ends_with_an_error_within_the_deadline(
    proxied: tuple[Site, FaultProxy], smollm: Path, alias: Any
) -> None:
    folder = alias(smollm, f"{MODEL}-hole")
    with mesh(proxied, folder, ("--relay-only",)) as (site, proxy, _):
        started = time.monotonic()
        seen = disturbed(site, folder.name, lambda: proxy.fail("/rpc", "blackhole"))
        took_s = time.monotonic() - started
        proxy.heal("/rpc")
        proxy.cut("/rpc")
    assert next(event["error"]["code"] for event in seen if "error" in event) in ("node_failed", "deadline_exceeded")
    assert took_s < DEADLINE_S + 3
