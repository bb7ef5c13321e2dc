"""The only head of a model is killed in the middle of a chat and started again: the chat waits for it and goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.processes import Process
from tests.lab.site import Answer, Site, assemble, events

PATIENT = {"FAILOVER_WAIT_S": "90"}  # a machine under load takes long to start a node
OPTIONS = ("--dtype", "float32", "--drafts", "off")
NUM_TOKENS = 100  # enough that it runs still when its third event is read


@pytest.fixture(scope="module")
def patient_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("patient"), **PATIENT) as site:
        yield site


def start_head(site: Site, model: Path) -> Process:
    return site.start_node("head", model, "0:4", *OPTIONS)


def body_of(model: Path) -> dict[str, Any]:
    said = [{"role": "user", "content": "What is the quick brown fox?"}]
    return {"model": model.name, "messages": said, "max_tokens": NUM_TOKENS, "temperature": 1.0, "seed": 5}


def undisturbed(site: Site, model: Path) -> Answer:
    return site.ask("/v1/chat/completions", body_of(model))


def test_a_chat_waits_for_its_only_head_to_be_started_again_and_goes_on(patient_site: Site, tiny: Path) -> None:
    site = patient_site
    site.model(tiny.name, wire_dtype="float32")
    head, tail = start_head(site, tiny), site.start_node("tail", tiny, "4:7", *OPTIONS)
    for node in (head, tail):
        node.wait_for("Ready: layers")
    site.wait_for_model(tiny.name)
    expected = undisturbed(site, tiny)

    asked = body_of(tiny) | {"stream": True, "stream_options": {"include_usage": True}, "meshnet": {"trace": True}}
    seen: list[dict[str, Any]] = []
    with site.post("/v1/chat/completions", asked, stream=True) as response:
        for event in events(response):
            seen.append(event)
            if len(seen) == 3:
                tail.send(signal.SIGSTOP)  # so that the chat can't end meanwhile
                head.kill()
                tail.send(signal.SIGCONT)
                start_head(site, tiny)
    answer = assemble(iter(seen))
    assert (answer.ids, answer.text, answer.usage) == (expected.ids, expected.text, expected.usage)
    assert answer.finish_reason == expected.finish_reason == "length"
    failover = site.story(answer.completion_id)["failovers"][-1]
    assert (failover["node"], failover["kind"], failover["kept"]) == ("head", "head", "tokens")
    assert failover["replayed_tokens"] > 0
    assert failover["replay_compute_ms"] > 0
    assert failover["resume_ms"] > 0
    worked = 2 * (expected.usage["total_tokens"] - 1)  # in each layer, of two chats; what was done again adds nothing
    given = "SELECT node_name, sessions, tokens, token_layers FROM tracker_contribution ORDER BY node_name"
    assert site.rows(given) == [("head", 2, worked, 4 * worked), ("tail", 2, worked, 3 * worked)]
