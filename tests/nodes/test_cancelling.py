"""A client leaves while a node holds its step: the others don't wait for that node, they are freed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from nodes.events import StreamAnswer
from relay import wire
from tests.nodes.meshes import Mesh

CUTS = [(0, 2), (2, 4), (4, 6)]
LONG = "abcdefgh" * 8  # several parts of a prompt


def wait_until(is_so: Callable[[], bool], deadline_s: float = 10) -> None:
    until = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


def held(mesh: Mesh, number: int) -> tuple[int, int]:
    sessions = mesh.nodes[number].engine.sessions
    return sessions.cached_tokens, sessions.reserved_tokens


def is_free(mesh: Mesh, *numbers: int) -> bool:
    return all(held(mesh, number) == (0, 0) for number in numbers)


@pytest.mark.parametrize(
    "ways",
    [{}, {"wire_versions": [(1,)] * 3}, {"relayed": False, "direct": True}],
    ids=["tunnel", "relay", "direct"],
)
@pytest.mark.parametrize("holding", [1, 2], ids=["middle", "tail"])
def test_a_client_that_leaves_frees_the_nodes_that_answer_at_once_and_the_one_that_doesnt_later(
    ways: dict[str, Any], holding: int
) -> None:
    with Mesh(CUTS, **ways) as mesh:
        stuck = mesh.nodes[holding].engine
        stuck.may_work.clear()
        answer = mesh.head.api.begin(mesh.request({"prompt": LONG}, "/v1/completions"), "relay")
        wait_until(lambda: held(mesh, 0)[0] > 0)
        _leave(answer)
        wait_until(lambda: is_free(mesh, 0, 3 - holding) and not mesh.head.api.num_chats)
        stuck.may_work.set()
        mesh.wait_until_free()

        assert is_free(mesh, 0, 1, 2)
        assert not stuck.steps or len(stuck.steps) == 1, "a step that nobody waits for isn't worked"


def test_a_client_that_leaves_while_the_heads_own_layers_are_busy_is_gone_at_once() -> None:
    with Mesh([(0, 2), (2, 6)], relayed=False, direct=True) as mesh:
        head = mesh.head
        head.engine.may_work.clear()
        answer = head.api.begin(mesh.request({"prompt": LONG}, "/v1/completions"), "relay")
        wait_until(lambda: head.api.num_chats == 1)
        _leave(answer)
        wait_until(lambda: not head.api.num_chats)
        head.engine.may_work.set()
        mesh.wait_until_free()

        assert is_free(mesh, 0, 1)


def _leave(answer: Any) -> None:
    """As the doors do it: what has begun to be sent is cancelled by its sender."""
    if not answer.cancel():
        result: wire.Response | StreamAnswer = answer.result(10)
        assert isinstance(result, StreamAnswer)
        result.cancel()
