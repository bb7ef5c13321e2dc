"""Nodes that stand still without a word, stopped or in a black hole: what they had to do is done elsewhere, and when
they wake up they change nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.doubles import at_step, head_of, victim_of
from tests.lab.ends import eventually
from tests.lab.site import Site
from tests.lab.tap import Asked, Tap
from tests.system.survivors import Mesh, assert_lost, assert_same, mesh_of

NUM_TOKENS = 40  # so that the chat still runs when whoever was lost is back
STEP = 6


@pytest.fixture(scope="module")
def mesh(tapped: tuple[Site, Tap], tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("still") / "tiny-still"
    with mesh_of(*tapped, tiny, folder, "tunnel", "--patience", "2") as mesh:
        mesh.learn(max_tokens=NUM_TOKENS)
        yield mesh


@pytest.fixture
def woken(mesh: Mesh) -> Iterator[Mesh]:
    """Everybody is awake before the test and after it."""
    mesh.mend()
    yield mesh
    for node in mesh.nodes.values():
        node.send(signal.SIGCONT)


def test_a_stopped_head_that_wakes_up_amid_its_successors_work_changes_nothing(woken: Mesh) -> None:
    mesh = woken
    stopped = mesh.steps.at(at_step("first", STEP), lambda asked: mesh.send(head_of(asked), signal.SIGSTOP))
    woke = mesh.steps.at(
        at_step("first", 3, epoch=1), lambda asked: mesh.send(head_of(stopped.wait(0)), signal.SIGCONT)
    )
    answer = mesh.ask(max_tokens=NUM_TOKENS)
    lost = stopped.wait()
    assert_same(answer, mesh.expected[False])
    [failover] = mesh.site.story(answer.completion_id)["failovers"]
    assert (failover["node"], failover["kind"]) == (mesh.name(head_of(lost)), "head")
    mesh.wait_until_free()
    late = eventually(lambda: said_late(mesh, lost, woke.wait(0)), 20, "the woken head has said nothing")
    assert [asked.answer and asked.answer.status for asked in late] == [409] * len(late)


def said_late(mesh: Mesh, lost: Asked, woke: Asked) -> list[Asked]:
    """What the woken head asked its hops, be it only to free the session, once that is answered."""
    asked = [one for one in mesh.steps.requests() if one.session == lost.session and one.epoch == lost.epoch]
    late = [one for one in asked if one.number > woke.number]
    return late if all(one.is_answered for one in late) else []


@pytest.mark.parametrize("role", ["first", "last"])
def test_the_work_of_a_node_in_a_black_hole_is_done_elsewhere(woken: Mesh, role: str) -> None:
    """R5. Neither end of its connection is told anything; the relay and the node notice by their pings."""
    mesh = woken
    hole: list[str] = []

    def swallow(asked: Asked) -> None:
        hole.append(f"{mesh.key_id(victim_of(role, asked))} ")
        mesh.tap.fail(hole[0], "blackhole")

    trigger = mesh.steps.at(at_step(role, STEP), swallow)
    answer = mesh.ask(is_streamed=False, is_sampled=True, max_tokens=NUM_TOKENS)
    mesh.tap.heal(hole[0])
    lost = trigger.wait(0)
    assert_lost(lost, mesh.steps.seen(lost.session), role)
    assert_same(answer, mesh.expected[True])
    failovers = mesh.site.story(answer.completion_id)["failovers"]
    assert mesh.name(victim_of(role, lost)) in [failover["node"] for failover in failovers]
    mesh.wait_until_free()


def test_a_stopped_replica_makes_one_request_slow_at_most_and_works_again_when_it_is_woken(woken: Mesh) -> None:
    """N3."""
    mesh = woken
    name = f"{mesh.model}-5to7-0"
    mesh.nodes[name].send(signal.SIGSTOP)
    stories = [mesh.site.story(mesh.ask().completion_id) for _ in range(6)]
    slow = [story["failovers"] for story in stories if story["failovers"]]
    assert len(slow) <= 1, slow
    assert all(story["state"] == "done" for story in stories)
    mesh.nodes[name].send(signal.SIGCONT)
    mesh.site.forgive()

    def works() -> bool:
        story = mesh.site.story(mesh.ask().completion_id)
        return name in [hop["node"] for hop in story["hops"]]

    eventually(works, 30, f"{name} gets no session")
    mesh.wait_until_free()
