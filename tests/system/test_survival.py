"""A node of a route dies in the middle of a step, and the text is that of the undisturbed run.

The head, a node in the middle and the tail, at their first step, amid the answer and at its last; greedy and sampled,
streamed and not; through the relay in both versions of the wire, and direct.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.doubles import victim_of
from tests.lab.site import Site
from tests.lab.tap import Tap
from tests.system.survivors import Mesh, assert_lost, assert_same, mesh_of

FIRST, BETWEEN, LAST = 1, 6, -1


@dataclass(frozen=True)
class Case:
    """Who dies at which step, and how the chat was asked."""

    way: str
    role: str
    step: int
    is_streamed: bool
    is_sampled: bool

    @property
    def name(self) -> str:
        at = {FIRST: "first", LAST: "last"}.get(self.step, f"{self.step}th")
        how = "streamed" if self.is_streamed else "whole"
        return f"{self.way}-{self.role}-at-{at}-step-{how}-{'sampled' if self.is_sampled else 'greedy'}"


# Every pair of values of two of the columns is in some row.
CASES = [
    Case("tunnel", "first", FIRST, True, False),
    Case("tunnel", "middle", BETWEEN, False, True),
    Case("tunnel", "last", LAST, True, True),
    Case("relay", "first", BETWEEN, False, True),
    Case("relay", "middle", LAST, True, False),
    Case("relay", "last", FIRST, False, False),
    Case("direct", "first", LAST, False, False),
    Case("direct", "middle", FIRST, False, True),
    Case("direct", "last", BETWEEN, True, False),
]
KEPT = {"tunnel": "activations", "relay": "tokens", "direct": "activations"}  # what replacements are filled from
CHUNKS = {"tunnel": 8, "relay": 512, "direct": 8}  # tokens: the prompt takes several steps, or one


class Meshes:
    """One mesh at a time, for as long as cases of its way follow each other."""

    def __init__(self, site: Site, tap: Tap, model: Path, folder: Path) -> None:
        self._site, self._tap, self._model, self._folder = site, tap, model, folder
        self._stack, self._way = ExitStack(), ""

    def of(self, way: str) -> Mesh:
        if way != self._way:
            self.close()
            kept = ("--keep-activations", "0") if KEPT[way] == "tokens" else ()
            folder = self._folder / f"tiny-{way}"
            made = mesh_of(self._site, self._tap, self._model, folder, way, *kept, chunk_tokens=CHUNKS[way])
            self._way, self._mesh = way, self._stack.enter_context(made)
            self._mesh.learn()
            assert self._mesh.expected[False].paths == ["local", way, way]
        return self._mesh

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def meshes(tapped: tuple[Site, Tap], tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meshes]:
    made = Meshes(*tapped, tiny, tmp_path_factory.mktemp("names"))
    with closing(made):
        yield made


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_node_killed_amid_a_step_is_replaced_and_the_text_is_that_of_the_undisturbed_run(
    meshes: Meshes, case: Case
) -> None:
    mesh = meshes.of(case.way)
    mesh.mend()
    expected = mesh.expected[case.is_sampled]
    step = expected.hops[1]["steps"] if case.step == LAST else case.step
    trigger = mesh.kill_at(case.role, step)
    answer = mesh.ask(is_streamed=case.is_streamed, is_sampled=case.is_sampled)
    lost = trigger.wait()
    assert_lost(lost, mesh.steps.seen(lost.session), case.role)
    assert_same(answer, expected)
    assert_told(mesh.site.story(answer.completion_id), mesh.name(victim_of(case.role, lost)), case)
    mesh.wait_until_free()


def assert_told(story: dict[str, Any], victim: str, case: Case) -> None:
    [failover] = story["failovers"]
    assert failover["node"] == victim
    assert failover["kind"] == ("head" if case.role == "first" else "hop")
    assert failover["cause"]
    assert story["state"] == "done"
    assert victim not in [hop["node"] for hop in story["hops"] if hop["steps"] is not None]
    if case.role != "first" and case.step != FIRST:
        assert failover["kept"] == KEPT[case.way]
