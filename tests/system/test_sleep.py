"""A node sleeps in the middle of a chat: it comes back by itself, knows nothing of what it held, and is filled anew."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.site import Site, assemble, events

MODEL = "tiny-sleeping"
PROMPT = "What is the quick brown fox?"
NUM_TOKENS = 120
GAP_S = 1.5


def test_a_node_that_slept_comes_back_and_the_chat_goes_on(
    site: Site, tiny: Path, alias: Callable[[Path, str], Path]
) -> None:
    folder = alias(tiny, MODEL)
    site.model(MODEL, wire_dtype="float32", prefill_chunk="8")
    same = ("--dtype", "float32", "--drafts", "off")
    head = site.start_node(f"{MODEL}-0", folder, "0:4", *same)
    tail = site.start_node(f"{MODEL}-1", folder, "4:7", *same, MESHNET_SLEEP_GAP_S=str(GAP_S))
    with site.serving(MODEL, [head, tail]):
        expected = site.chat(MODEL, PROMPT, max_tokens=NUM_TOKENS)
        body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "stream": True}
        body |= {"max_tokens": NUM_TOKENS, "stream_options": {"include_usage": True}, "meshnet": {"trace": True}}
        seen = []
        with site.post("/v1/chat/completions", body, stream=True) as response:
            for number, event in enumerate(events(response)):
                seen.append(event)
                if number == 3:
                    tail.send(signal.SIGSTOP)
                    time.sleep(2 * GAP_S)
                    tail.send(signal.SIGCONT)
        answer = assemble(iter(seen))
        tail.wait_for(r"This node slept for \d+ s")
        tail.wait_for(r"(?s)slept.*Connected to the relay")
        tail.wait_for(r"(?s)slept.*Registered with")
        head.wait_for("a hop was given .* tokens from what was kept")
        until = time.monotonic() + 20
        while any(held(site, asked) for asked in (0, 1)):
            assert time.monotonic() < until
            time.sleep(0.1)
        site.forgive()
    assert answer.ids == expected.ids
    assert answer.text == expected.text
    assert answer.usage == expected.usage


def held(site: Site, asked: int) -> int:
    told = site.health(f"{MODEL}-{asked}", f"{MODEL}-{1 - asked}")
    return int(told["cached_tokens"] + told["reserved_tokens"])
