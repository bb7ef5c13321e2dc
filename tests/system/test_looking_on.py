"""Who looks on while a chat runs: its tokens, what its steps take at each hop and its last steps, as they come."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.site import Site

DEADLINE_S = 30


def until(told: Callable[[], dict[str, Any]], is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    give_up = time.monotonic() + DEADLINE_S
    while not is_so(story := told()):
        assert time.monotonic() < give_up, story
        time.sleep(0.1)
    return story


def test_a_chat_that_runs_tells_how_it_goes(site: Site, tiny: Path, alias: Callable[[Path, str], Path]) -> None:
    folder = alias(tiny, "tiny-watched")
    body = {"model": "tiny-watched", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    body |= {"logit_bias": {"2": -100}, "max_tokens": 3500}  # its end token
    with site.mesh(folder, ["0:3", "3:7"], "--drafts", "off"):
        with site.post("/v1/chat/completions", body, stream=True) as response:
            lines = filter(None, response.iter_lines(decode_unicode=True))
            found = re.search(r'"id": ?"([^"]+)"', next(lines))
            assert found

            def story() -> dict[str, Any]:
                next(lines)  # so that it goes on
                return site.story(found[1])

            early = until(story, lambda told: bool(told["last_steps"] and told["completion_tokens"]))
            late = until(story, lambda told: told["completion_tokens"] > early["completion_tokens"])
        left = until(lambda: site.story(found[1]), lambda told: told["state"] != "running")
    assert (early["state"], late["state"], left["state"]) == ("running", "running", "cancelled")
    assert late["tokens_per_s"] > 0
    assert [hop["path"] for hop in early["hops"]] == ["local", "tunnel"]
    for hop in [*early["hops"], *late["hops"], *left["hops"]]:
        assert 0 < hop["compute_p50_ms"] <= hop["compute_p95_ms"]
        assert 0 <= hop["network_p50_ms"] <= hop["network_p95_ms"]
    steps = late["last_steps"]
    assert [step["step"] for step in steps] == list(range(steps[0]["step"], steps[0]["step"] + 32))
    assert all(len(step["hops"]) == 2 and step["tokens"] == 1 for step in steps)
