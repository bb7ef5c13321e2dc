"""Routes without a spare: many chats on one, a node that is slow, and what a client is told when a node is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relay import wire
from tests.lab.site import Answer, Site, events
from tests.lab.tap import Tap
from tests.system.survivors import NUM_TOKENS, PROMPT, Mesh, assert_same, mesh_of

SLOW_STEP_S = 8
DEADLINE_S = 4


class SlowChat:
    """A chat of two steps over a tail that takes eight seconds for each, in threads."""

    def __init__(self, mesh: Mesh, tap: Tap, tail: str) -> None:
        self.mesh, self.lines = mesh, list[str]()
        self._answers = [tap.hold(tail, is_response, "up") for _ in range(2)]
        self._threads = [threading.Thread(target=target) for target in (self._ask, self._let_pass)]
        for thread in self._threads:
            thread.start()

    def wait(self) -> list[str]:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "the chat has no end"
        return self.lines

    def _let_pass(self) -> None:
        for answer in self._answers:
            answer.wait(60)
            time.sleep(SLOW_STEP_S)
            answer.release()

    def _ask(self) -> None:
        body = {"model": self.mesh.model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
        body |= {"temperature": 0, "stream": True}
        with self.mesh.site.post("/v1/chat/completions", body, stream=True) as response:
            self.lines += [line for line in response.iter_lines(decode_unicode=True) if line]


@pytest.fixture(scope="module")
def slow_chat(
    tapped: tuple[Site, Tap], tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SlowChat, Answer]]:
    """It runs while the other tests of this module do."""
    site, tap = tapped
    folder = tmp_path_factory.mktemp("slow") / "tiny-slow"
    with mesh_of(site, tap, tiny, folder, "tunnel", chunk_tokens=512, copies=1, cuts=("0:5", "5:7")) as mesh:
        quick = mesh.ask(max_tokens=2)
        tail = mesh.key_id(site.peer_id(f"{folder.name}-5to7-0"))
        chat = SlowChat(mesh, tap, f"{tail} ")
        yield chat, quick
        chat.wait()
        tap.heal(f"{tail} ")


def is_response(message: bytes) -> bool:
    return message[:2] == bytes([wire.VERSION, wire.Kind.RESPONSE])


@pytest.fixture(scope="module")
def mesh(
    tapped: tuple[Site, Tap], slow_chat: object, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("one") / "tiny-one"
    with mesh_of(*tapped, tiny, folder, "tunnel", copies=1) as mesh:
        mesh.learn()
        yield mesh


def test_chats_of_all_lengths_one_after_another_and_at_once_say_what_each_says_alone(mesh: Mesh) -> None:
    """N5."""
    asked = [(f"{number} " + "and the lazy dog " * (number % 7), 1 + 3 * (number % 6)) for number in range(20)]

    def ask(prompt: str, max_tokens: int) -> Answer:
        return mesh.ask(prompt=prompt, max_tokens=max_tokens, seed=3, temperature=0.7)

    alone = [ask(*one) for one in asked]
    assert len({answer.text for answer in alone if len(answer.ids) > 3}) > 5
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda one: ask(*one), asked[4:12]))
    for one, many in zip(alone[4:12], together, strict=True):
        assert_same(many, one)
    mesh.wait_until_free()


@pytest.mark.parametrize(
    ("role", "is_streamed"), [("first", True), ("middle", False), ("last", True)], ids=["first", "middle", "last"]
)
def test_without_a_spare_the_client_is_told_once_and_in_time_which_layers_are_lost(
    mesh: Mesh, role: str, is_streamed: bool
) -> None:
    mesh.mend()
    trigger = mesh.kill_at(role, 6)
    body = {"model": mesh.model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": NUM_TOKENS}
    body |= {"temperature": 0, "stream": is_streamed, "meshnet": {"deadline_s": DEADLINE_S}}
    with mesh.site.post("/v1/chat/completions", body, stream=is_streamed) as response:
        told = list(events(response)) if is_streamed else [response.json()]
    trigger.wait()
    [error] = [event["error"] for event in told if "error" in event]
    assert error["code"] in ("node_failed", "no_route"), "an error of its own, before the deadline is over"
    lost = {"first": "layers 0–1", "middle": "layers 2–4", "last": "layers 5–6"}[role]
    assert lost in error["message"]
    if is_streamed:
        assert "error" in told[-1]
        assert text_of(told) == mesh.expected[False].text[: len(text_of(told))]
    mesh.wait_until_free()
    mesh.mend()
    assert_same(mesh.ask(), mesh.expected[False])


def text_of(told: list[dict[str, Any]]) -> str:
    choices = [choice for event in told for choice in event.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_a_node_that_takes_eight_seconds_for_a_step_is_slow_and_not_dead(
    slow_chat: tuple[SlowChat, Answer], tapped: tuple[Site, Tap]
) -> None:
    """N10."""
    chat, quick = slow_chat
    lines = chat.wait()
    assert lines[-1] == "data: [DONE]"
    steps = "".join("k" if line.startswith(":") else "." for line in lines).split(".")
    assert max(map(len, steps)) >= SLOW_STEP_S // 2, "the client hears that its request lives"
    assert quick.text
    assert not [line for line in lines if '"error"' in line]
    site, tap = tapped
    assert chat.mesh.model in site.model_names()
    for name in chat.mesh.nodes:
        assert tap.opened.count(f"{chat.mesh.key_id(site.peer_id(name))} /ws") == 1, "it has had to connect again"
