"""Meshes of a tiny model whose nodes are killed, stopped and cut off, and what their chats must say nevertheless."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relay import headers
from tests.lab.doubles import Doubles
from tests.lab.site import Answer, Site
from tests.lab.tap import Asked, Tap

PROMPT = "What is the quick brown fox?"
NUM_TOKENS = 12


class Mesh(Doubles):
    """Knows what its model answers when nothing happens: `expected`, by whether it is sampled."""

    expected: dict[bool, Answer]

    def ask(
        self, *, is_streamed: bool = True, is_sampled: bool = False, prompt: str = PROMPT, **parameters: Any
    ) -> Answer:
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], "max_tokens": NUM_TOKENS}
        body |= {"temperature": 1.0, "seed": 11} if is_sampled else {}
        return self.site.ask("/v1/chat/completions", body | parameters, is_streamed=is_streamed)

    def learn(self, **parameters: Any) -> None:
        self.expected = {is_sampled: self.ask(is_sampled=is_sampled, **parameters) for is_sampled in (False, True)}
        assert all(answer.finish_reason == "length" for answer in self.expected.values())


@contextlib.contextmanager
def mesh_of(
    site: Site, tap: Tap, model: Path, folder: Path, way: str, *options: str, chunk_tokens: int = 8, **shape: Any
) -> Iterator[Mesh]:
    """In float32, where a replay changes no id. The model is named by the last part of `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(model, target_is_directory=True)
    site.model(folder.name, wire_dtype="float32", prefill_chunk=str(chunk_tokens))
    with Mesh(site, tap, folder, way, *options, **shape) as mesh:
        yield mesh


def assert_same(answer: Answer, expected: Answer) -> None:
    assert answer.ids == expected.ids
    assert answer.text == expected.text
    assert answer.usage == expected.usage
    assert answer.finish_reason == expected.finish_reason


def assert_lost(lost: Asked, seen: list[Asked], role: str) -> None:
    """Nobody heard an answer to the step, and its positions were worked once more in a later epoch.

    It may have been asked once more in its own epoch: on a new connection, before the dead node's port was closed.
    """
    later = [asked for asked in seen if asked.epoch == lost.epoch and asked.number > lost.number]
    assert all(asked.step == lost.step and not asked.is_answered for asked in later)
    if role != "first":
        assert not lost.is_answered
    assert worked_again(lost, seen), "the step wasn't lost"


def worked_again(lost: Asked, seen: list[Asked]) -> bool:
    position = lost.number_in(headers.POSITION)
    return any(asked.epoch > lost.epoch and position in positions(asked) for asked in seen)


def positions(asked: Asked) -> range:
    start, num_tokens = asked.number_in(headers.POSITION), int(asked.header(headers.SHAPE).split(",")[1])
    return range(start, start + num_tokens)
