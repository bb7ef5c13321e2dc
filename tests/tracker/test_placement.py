"""Which layers a machine gets, in meshes small enough to see why."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracker.simulated import drawn, joined, machine, optimum
from tracker import placement
from tracker.meshes import Machine, Mesh, NoRoom
from tracker.placement import Choice, choose_shard, with_machine
from tracker.planning import MOST_LOOKS, CutShort, plan
from tracker.shares import Share, shares


def mesh(*machines: Machine, demand: float | None = None) -> Mesh:
    return Mesh(12, machines, demand)


def layers(choice: Choice) -> tuple[int, int]:
    return choice.layers


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    num_layers, machines = draw(st.integers(1, 10)), []
    for number in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, num_layers - 1))
        end = draw(st.integers(start + 1, num_layers))
        machines.append(machine(f"m{number}", num_layers, draw(st.sampled_from((0.5, 1.0, 3.0)))).at(start, end))
    return Mesh(num_layers, tuple(machines), tail_layers=draw(st.sampled_from((0.0, 1.5))))


def test_the_first_machines_take_what_nobody_holds() -> None:
    assert choose_shard(mesh(), machine("a", 8)) == Choice(
        0, 8, "Nobody held layers 0–7: its memory holds 8 layers; layers 8–11 still have nobody.", 0.0, 0.0
    )
    closed = choose_shard(mesh(machine("a", 8).at(0, 8)), machine("b", 4))
    assert (layers(closed), closed.reason) == ((8, 12), "Nobody held layers 8–11: with them every layer is held.")
    assert closed.after == pytest.approx(1000 / 8)


def test_the_weakest_layers_are_raised_most() -> None:
    choice = choose_shard(mesh(machine("a", 6).at(0, 6), machine("b", 6, 4.0).at(6, 12)), machine("c", 12))
    assert layers(choice) == (6, 12)
    assert choice.reason == "The weakest were layers 6–11: from 41.7 to 166.7 tokens/s, one step at a time."


def test_where_no_machine_alone_lifts_the_weakest_as_much_as_can_be_is_relieved() -> None:
    choice = choose_shard(mesh(machine("a", 6).at(0, 6), machine("b", 6).at(6, 12)), machine("c", 6))
    assert layers(choice) == (0, 6)
    assert choice.reason.startswith("No single machine lifts all of the weakest, layers 0–11")


def test_a_slow_machine_with_much_memory_takes_no_more_than_helps() -> None:
    fast = machine("fast", 10, 0.1).at(0, 10)
    assert layers(choose_shard(mesh(fast), machine("slow", 12, 2.0))) == (10, 12)


def test_where_there_is_enough_no_layer_shall_hang_on_one_machine() -> None:
    held = mesh(machine("a", 12).at(0, 12), machine("b", 12).at(0, 12), machine("c", 4).at(0, 4), demand=1.0)
    choice = choose_shard(held.without("b"), machine("d", 8))
    assert layers(choice) == (4, 12)
    assert choice.reason.startswith("There is enough for the 1.0 tokens/s that are asked for")


def test_where_there_is_enough_a_chat_alone_is_fast() -> None:
    twice = [
        machine(name, 6).at(*shard) for name, shard in zip("abcd", [(0, 6), (0, 6), (6, 12), (6, 12)], strict=True)
    ]
    assert layers(choose_shard(mesh(*twice, demand=1.0), machine("e", 12))) == (0, 12), "one hop instead of two"


def test_the_ends_of_the_model_take_more_memory() -> None:
    small = replace(machine("a", 5), head_bytes=150, tail_bytes=450)
    assert [layers(choose_shard(Mesh(12, (machine("h", 3).at(0, 3),)), small))] == [(3, 8)]
    ends = Mesh(3, (machine("h", 3).at(0, 2),))
    with pytest.raises(NoRoom, match="one layer takes 0 MB with its caches"):
        choose_shard(Mesh(1, ()), small)
    assert layers(choose_shard(ends, replace(small, tail_bytes=400))) == (2, 3)


def test_a_machine_that_is_there_is_placed_as_if_it_were_not() -> None:
    held = mesh(machine("a", 12).at(0, 12), machine("b", 6).at(0, 6))
    assert choose_shard(held, held.machine("b")) == choose_shard(held.without("b"), machine("b", 6))


@settings(max_examples=40, deadline=None)
@given(meshes(), st.integers(1, 10), st.data())
def test_what_a_share_says_is_so(held: Mesh, length: int, data: st.DataObject) -> None:
    newcomer = machine("new", length, 2.0)
    start = data.draw(st.integers(0, held.num_layers - 1))
    within = start, data.draw(st.integers(start + 1, held.num_layers))
    found = list(shares(held, newcomer, within))
    wanted = [(a, b) for a in range(*within) for b in range(a + 1, within[1] + 1) if b - a <= length]
    assert sorted((share.start_layer, share.end_layer) for share in found) == wanted
    for share in found:
        capacities = with_machine(held, newcomer, share.start_layer, share.end_layer).capacities
        assert share.bottleneck == pytest.approx(max(1e-6, min(capacities)), rel=1e-6, abs=2e-6)


@settings(max_examples=25, deadline=None)
@given(meshes(), st.integers(1, 10))
def test_a_choice_is_never_worse_than_another(held: Mesh, length: int) -> None:
    newcomer = machine("new", length, 2.0)
    choice = choose_shard(held, newcomer)
    after = with_machine(held, newcomer, *choice.layers)
    for share in shares(held, newcomer):
        other = with_machine(held, newcomer, share.start_layer, share.end_layer)
        assert len(after.missing()) <= len(other.missing())
        if other.is_whole():
            assert after.bottleneck() >= other.bottleneck() * (1 - 1e-4)


def test_of_a_model_with_very_many_layers_not_every_length_is_tried() -> None:
    choice = choose_shard(Mesh(1024, ()), machine("a", 700))
    assert layers(choice) == (0, 700)
    assert len(list(shares(Mesh(1024, ()), machine("a", 700)))) < 70_000, "of nearly 500,000"


@pytest.mark.parametrize(("number", "num_layers", "held"), [(24, 1000, 1000), (24, 1000, 43), (1, 1024, 900)])
def test_the_work_of_a_plan_is_bounded_whatever_its_size(
    monkeypatch: pytest.MonkeyPatch, number: int, num_layers: int, held: int
) -> None:
    looks = 0

    def counted(*args: Any) -> Iterator[Share]:
        nonlocal looks
        for share in shares(*args):
            looks += 1
            yield share

    monkeypatch.setattr(placement, "shares", counted)
    planned = plan(Mesh(num_layers, tuple(machine(f"m{at}", held, 1.0 + at % 3) for at in range(number))))
    assert 0 < looks < MOST_LOOKS
    assert planned.is_whole() == (number * held >= num_layers)


def test_a_plan_ends_when_nobody_wants_to_wait_longer() -> None:
    steps = iter([True, True])
    with pytest.raises(CutShort):
        plan(mesh(*(machine(name, 6) for name in "abcd")), lambda: next(steps, False))


@pytest.mark.parametrize("seed", range(8))
def test_small_meshes_come_close_to_the_best_there_is(seed: int) -> None:
    """As they join, with the moves that are proposed; and placed afresh. bench.placement tries many more."""
    chance = random.Random(seed)
    num_layers = chance.randint(4, 6)
    machines = drawn(3, num_layers, chance)
    best = optimum(machines, num_layers)
    assert joined(machines, num_layers).mesh.bottleneck() >= best / 2
    assert plan(Mesh(num_layers, tuple(machines))).bottleneck() >= best * 0.8


def test_most_small_meshes_do_what_is_best() -> None:
    chance, ratios = random.Random(3), []
    for _ in range(8):
        machines = drawn(3, 5, chance)
        ratios.append(joined(machines, 5).mesh.bottleneck() / optimum(machines, 5))
    assert sum(ratios) / len(ratios) > 0.85
    assert sorted(ratios)[len(ratios) // 2] > 0.95
