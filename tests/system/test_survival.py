"""Nodes die in the middle of a step, and the text is that of the undisturbed run; or one typed error tells why not.

Greedy and sampled, streamed and not, through the relay in both versions of the wire and direct; the head, a node in the
middle and the tail, at their first step, in the middle of the answer and at its last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from relay import headers
from tests.lab.doubles import Doubles, proxied_site, victim_of
from tests.lab.site import Answer, Site
from tests.lab.tap import Asked, Tap

PROMPT = "What is the quick brown fox?"
NUM_TOKENS = 12
IN_BETWEEN = 6  # a step amid the answer
FIRST, BETWEEN, LAST = 1, IN_BETWEEN, -1


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
# Of each way, what its heads fill replacements from, and tokens of a prompt's chunk.
KEPT = {"tunnel": "activations", "relay": "tokens", "direct": "activations"}
CHUNKS = {"tunnel": 8, "relay": 512, "direct": 8}


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Tap]]:
    with proxied_site(tmp_path_factory.mktemp("survival")) as site_and_tap:
        yield site_and_tap


class Mesh(Doubles):
    """Knows what its model answers when nothing happens."""

    def ask(self, *, is_streamed: bool, is_sampled: bool, **parameters: Any) -> Answer:
        body = {"model": self.model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": NUM_TOKENS}
        body |= {"temperature": 1.0, "seed": 11} if is_sampled else {}
        return self.site.ask("/v1/chat/completions", body | parameters, is_streamed=is_streamed)

    def learn(self) -> None:
        self.expected = {is_sampled: self.ask(is_streamed=True, is_sampled=is_sampled) for is_sampled in (False, True)}


@pytest.fixture(scope="module")
def mesh(
    request: pytest.FixtureRequest,
    proxied: tuple[Site, Tap],
    tiny: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mesh]:
    way = request.param
    folder = tmp_path_factory.mktemp(way) / f"tiny-{way}"
    folder.symlink_to(tiny, target_is_directory=True)
    site, tap = proxied
    site.model(folder.name, wire_dtype="float32", prefill_chunk=str(CHUNKS[way]))
    kept = ("--keep-activations", "0") if KEPT[way] == "tokens" else ()
    with Mesh(site, tap, folder, way, *kept) as mesh:
        mesh.learn()
        yield mesh


@pytest.mark.parametrize(
    ("mesh", "case"), [(case.way, case) for case in CASES], indirect=["mesh"], ids=[case.name for case in CASES]
)
def test_a_node_killed_amid_a_step_is_replaced_and_the_text_is_that_of_the_undisturbed_run(
    mesh: Mesh, case: Case
) -> None:
    mesh.mend()
    mesh.steps.clear()
    expected = mesh.expected[case.is_sampled]
    assert expected.finish_reason == "length"
    step = expected.hops[1]["steps"] if case.step == LAST else case.step
    trigger = mesh.kill_at(case.role, step)
    answer = mesh.ask(is_streamed=case.is_streamed, is_sampled=case.is_sampled)
    lost = trigger.wait()
    victim = mesh.name(victim_of(case.role, lost))
    assert_lost(lost, mesh.steps.seen(lost.session), case.role)
    assert answer.ids == expected.ids
    assert answer.text == expected.text
    assert answer.usage == expected.usage
    assert answer.finish_reason == expected.finish_reason
    assert_told(mesh.site.story(answer.completion_id), victim, case)
    mesh.wait_until_free()


def assert_lost(lost: Asked, seen: list[Asked], role: str) -> None:
    """Nobody heard an answer to the step, and its positions were worked once more in the next epoch."""
    assert not any(asked.epoch == 0 and asked.number > lost.number for asked in seen)
    if role != "first":
        assert not lost.is_answered
    again = [asked for asked in seen if asked.epoch == 1 and lost.number_in(headers.POSITION) in positions(asked)]
    assert again, "the step wasn't lost"


def positions(asked: Asked) -> range:
    start, num_tokens = asked.number_in(headers.POSITION), int(asked.header(headers.SHAPE).split(",")[1])
    return range(start, start + num_tokens)


def assert_told(story: dict[str, Any], victim: str, case: Case) -> None:
    [failover] = story["failovers"]
    assert failover["node"] == victim
    assert failover["kind"] == ("head" if case.role == "first" else "hop")
    assert failover["cause"]
    assert story["state"] == "done"
    assert victim not in [hop["node"] for hop in story["hops"]]
