"""A node's clock is off, or is set while a chat runs: nothing changes, and no time that is shown is less than none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.site import Answer, Site, assemble, events
from tests.lab.wallclock import WallClock

MODEL = "tiny-clocks"
PROMPT = "What is the quick brown fox?"
NUM_TOKENS = 16  # its clock is read from a file each time, which makes it slow
OFF_S = [5, -5, 3600, -3600]  # one after the other


def test_a_clock_that_is_off_or_jumps_changes_nothing(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    clock = WallClock(tmp_path / "clock", -3600)
    folder = alias(tiny, MODEL)
    nodes = [
        site.start_node(f"{MODEL}-head", folder, "0:4", **clock.env),
        site.start_node(f"{MODEL}-tail", folder, "4:7"),
    ]
    nodes[0].wait_for("Ready: layers", 120)  # it starts from nothing
    with site.serving(MODEL, nodes):
        expected = site.chat(MODEL, PROMPT, max_tokens=NUM_TOKENS)
        for off_s in OFF_S:
            answer = ask(site, functools.partial(clock.set, off_s))
            assert (answer.ids, answer.text, answer.usage) == (expected.ids, expected.text, expected.usage)
            assert_no_time_is_negative(answer.hops)
            assert_no_time_is_negative(site.story(answer.completion_id))
        assert MODEL in site.model_names()
        assert "expired" not in nodes[0].output


def ask(site: Site, disturb: Callable[[], None]) -> Answer:
    """A chat; after its third event `disturb` is called."""
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0}
    body |= {"max_tokens": NUM_TOKENS, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"meshnet": {"trace": True}}
    seen = []
    with site.post("/v1/chat/completions", body, stream=True) as response:
        assert response.status_code == 200, response.text
        for number, event in enumerate(events(response)):
            seen.append(event)
            if number == 3:
                disturb()
    return assemble(iter(seen))


def assert_no_time_is_negative(told: Any) -> None:
    if isinstance(told, dict):
        for name, value in told.items():
            if isinstance(value, (int, float)) and name.endswith(("_ms", "_s", "ms_total")):
                assert value >= 0, (name, value)
            assert_no_time_is_negative(value)
    elif isinstance(told, list):
        for value in told:
            assert_no_time_is_negative(value)
