"""Several choices of one answer, as the official client gets them: each is what its seed gives alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.lab.processes import Process
from tests.lab.site import Site, events

SEED, COUNT = 5, 3
NUM_TOKENS = 100  # enough that they run still when the fifth event is read
ASKED: dict[str, Any] = {"temperature": 1.0, "seed": SEED, "max_tokens": NUM_TOKENS}
MESSAGES: Any = [{"role": "user", "content": "What is the quick brown fox?"}]


class Mesh:
    """Two heads and a tail, in float32: there the steps of several sessions together give the tokens of each alone."""

    def __init__(self, site: Site, model: str, nodes: list[Process]) -> None:
        self.site, self.model = site, model
        self.head, _, self.tail = nodes
        self.client = openai.OpenAI(base_url=f"{site.url}/v1", api_key=site.api_key, max_retries=0, timeout=60)

    def alone(self, choice: int) -> str:
        asked = ASKED | {"seed": SEED + choice}
        answer = self.client.chat.completions.create(model=self.model, messages=MESSAGES, **asked)
        return answer.choices[0].message.content or ""


@pytest.fixture(scope="module")
def mesh(site: Site, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("choices") / "tiny-choices"
    folder.symlink_to(tiny, target_is_directory=True)
    site.model(folder.name, wire_dtype="float32")
    with site.mesh(folder, ["0:4", "0:4", "4:7"], "--dtype", "float32") as nodes:
        yield Mesh(site, folder.name, nodes)


@pytest.fixture(scope="module")
def expected(mesh: Mesh) -> list[str]:
    texts = [mesh.alone(choice) for choice in range(COUNT)]
    assert len(set(texts)) == COUNT
    return texts


def test_each_choice_is_what_its_seed_gives_alone(mesh: Mesh, expected: list[str]) -> None:
    answer = mesh.client.chat.completions.create(model=mesh.model, messages=MESSAGES, n=COUNT, **ASKED)
    assert [choice.message.content for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == list(range(COUNT))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == COUNT * NUM_TOKENS
    assert 0 < answer.usage.prompt_tokens < 2 * len(MESSAGES[0]["content"])
    stories = [mesh.site.story(f"{answer.id}/{choice}") for choice in range(COUNT)]
    assert len({story["hops"][0]["node"] for story in stories}) == 2, "they spread over the heads"


def test_choices_of_a_stream_are_those_of_the_whole(mesh: Mesh, expected: list[str]) -> None:
    texts, indices = [""] * COUNT, []
    for chunk in mesh.client.chat.completions.create(
        model=mesh.model, messages=MESSAGES, n=COUNT, stream=True, **ASKED
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            indices.append(choice.index)
    assert texts == expected
    assert indices != sorted(indices), "they come side by side"


def test_a_text_is_continued_several_times(mesh: Mesh) -> None:
    asked = {"model": mesh.model, "prompt": "the quick", **ASKED, "max_tokens": 20}
    answer = mesh.client.completions.create(n=2, **asked)
    singles = [mesh.client.completions.create(**asked | {"seed": SEED + choice}).choices[0].text for choice in (0, 1)]
    assert [choice.text for choice in answer.choices] == singles


def test_a_choice_survives_its_head_beside_the_others(mesh: Mesh, expected: list[str]) -> None:
    body = {"model": mesh.model, "messages": MESSAGES, "n": COUNT, "stream": True, **ASKED}
    texts, num_seen, completion_id = [""] * COUNT, 0, ""
    with mesh.site.post("/v1/chat/completions", body, stream=True) as response:
        for event in events(response):
            completion_id, num_seen = event["id"], num_seen + 1
            for choice in event["choices"]:
                texts[choice["index"]] += choice["delta"]["content"]
            if num_seen == 5:
                mesh.tail.send(signal.SIGSTOP)  # so that they can't end meanwhile
                mesh.head.kill()
                mesh.tail.send(signal.SIGCONT)
    assert texts == expected
    stories = [mesh.site.story(f"{completion_id}/{choice}") for choice in range(COUNT)]
    assert {story["state"] for story in stories} == {"done"}
    num_failovers = [len(story["failovers"]) for story in stories]
    assert 1 <= sum(num_failovers) < COUNT, "the others never noticed"
