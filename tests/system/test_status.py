"""The site says what is true: a model is listed while a full route exists, a dead node is offline in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.site import Site


def test_a_model_whose_tail_stops_is_no_longer_listed_and_its_chat_names_the_layers(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    folder = alias(tiny, "tiny-holder")
    with site.mesh(folder, ["0:3", "3:7"]) as nodes:
        assert site.chat("tiny-holder", "Hello", max_tokens=4).ids
        nodes[1].stop()
        assert "tiny-holder" not in site.model_names()
        started = time.monotonic()
        body = {"model": "tiny-holder", "messages": [{"role": "user", "content": "Hello"}]}
        response = site.post("/v1/chat/completions", body)
        assert time.monotonic() - started < 2
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    assert "layers 3–6" in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "no_route"


@pytest.mark.parametrize("reach", [("--relay-only",), ("--listen", "auto", "--no-relay")], ids=["relay", "direct"])
def test_a_killed_node_is_offline_within_five_seconds(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path], reach: tuple[str, ...]
) -> None:
    name = f"tiny-killed-{len(reach)}"
    with site.mesh(alias(tiny, name), ["0:4", "4:7"], *reach) as nodes:
        nodes[1].kill()
        killed = time.monotonic()
        while name in site.model_names():
            assert time.monotonic() - killed < 5
            time.sleep(0.1)


def test_a_restarted_node_serves_again_under_its_key(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    folder = alias(tiny, "tiny-restarted")
    with site.mesh(folder, ["0:4", "4:7"]) as nodes:
        before = site.chat("tiny-restarted", "Hello", max_tokens=6)
        nodes[0].kill()
        again = site.start_node("tiny-restarted-0", folder, "0:4")
        again.wait_for("Ready: layers")
        site.wait_for_model("tiny-restarted")
        assert site.chat("tiny-restarted", "Hello", max_tokens=6).ids == before.ids
        again.stop()


def test_a_second_process_for_the_same_node_names_the_first_and_exits(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    folder = alias(tiny, "tiny-twice")
    with site.mesh(folder, ["0:7"]) as nodes:
        second = site.start_node("tiny-twice-0", folder, "0:7")
        assert second.wait() == 2
        assert str(nodes[0].pid) in second.output
