"""Moves that are proposed: for a clear gain alone, never one that leaves layers alone, and never without an end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracker.simulated import Simulated, drawn, joined, machine, routed
from tracker.meshes import Machine, Mesh
from tracker.proposals import MAX_GAIN, MIN_GAIN, propose


def mesh(*machines: Machine, demand: float | None = None) -> Mesh:
    return Mesh(12, machines, demand)


def halves(firsts: int, seconds: int) -> list[Machine]:
    return [machine(f"a{at}", 6).at(0, 6) for at in range(firsts)] + [
        machine(f"b{at}", 6).at(6, 12) for at in range(seconds)
    ]


def test_a_machine_that_is_missed_least_goes_where_it_helps_most() -> None:
    [proposal] = propose(mesh(*halves(3, 1)))
    assert (proposal.key, proposal.start_layer, proposal.end_layer, proposal.loads) == ("a0", 6, 12, True)
    assert proposal.gain == pytest.approx(2)
    assert proposal.reason == "The weakest are layers 6–11: from 166.7 to 333.3 tokens/s, one step at a time."


def test_a_small_gain_moves_nobody() -> None:
    assert propose(mesh(*halves(6, 5))) == []


def test_who_holds_layers_alone_stays() -> None:
    assert propose(mesh(machine("a", 6).at(0, 6), machine("b", 6, 4.0).at(6, 12))) == []


def test_who_chose_its_layers_itself_stays() -> None:
    assert propose(mesh(*(replace(one, is_fixed=True) for one in halves(3, 1)))) == []


def test_a_gap_is_closed_though_that_takes_a_machine_from_where_it_is_alone() -> None:
    [proposal] = propose(mesh(machine("a", 12).at(0, 6)))
    assert (proposal.start_layer, proposal.end_layer, proposal.gain) == (0, 12, MAX_GAIN)
    assert proposal.reason == "Nobody holds layers 6–11; every layer is held then."


def test_a_gap_is_made_smaller_where_it_cannot_be_closed() -> None:
    [proposal] = propose(mesh(machine("a", 4).at(0, 4), machine("b", 4).at(0, 4)))
    assert (proposal.start_layer, proposal.end_layer) == (4, 8)
    assert "layers 8–11 still have nobody then" in proposal.reason


def test_a_machine_may_use_fewer_of_its_layers_without_loading_any() -> None:
    [proposal] = propose(mesh(machine("slow", 12, 4.0).at(0, 12), machine("fast", 11, 0.1).at(0, 11)))
    assert (proposal.key, proposal.start_layer, proposal.end_layer, proposal.loads) == ("slow", 11, 12, False)
    assert proposal.reason.endswith("It has them in memory: nothing is loaded.")


def test_and_more_of_them_again_when_others_have_left() -> None:
    slow = replace(machine("slow", 12, 4.0).at(11, 12), loaded_start=0, loaded_end=12)
    [proposal] = propose(mesh(slow))
    assert (proposal.start_layer, proposal.end_layer, proposal.loads) == (0, 12, False)


def test_what_is_gained_must_pay_for_the_loading() -> None:
    """As much is asked for as is there: while one of three is away, a third of it isn't answered."""
    asked = mesh(*halves(3, 1), demand=100.0)
    assert propose(asked)
    assert propose(replace(asked, demand=20.0)) != propose(asked), "for the layers that hang on one machine alone"
    assert "hang on one machine" in propose(replace(asked, demand=20.0))[0].reason


def test_several_steps_are_proposed_together_and_in_order() -> None:
    """Three that could hold half each do most as thirds; none of the steps alone gains anything."""
    thirds = mesh(*halves(2, 1))
    steps = propose(thirds)
    assert len(steps) > 1
    assert all("Step " in step.reason for step in steps)
    after = thirds
    for step in steps:
        after = after.moved(step.key, step.start_layer, step.end_layer)
        assert after.bottleneck() >= thirds.bottleneck() * 0.999
    assert after.bottleneck() >= MIN_GAIN * thirds.bottleneck()


def test_where_all_is_as_good_as_can_be_nothing_is_proposed() -> None:
    assert propose(mesh()) == []
    assert propose(mesh(*halves(2, 2))) == []


@settings(max_examples=8, deadline=None)
@given(st.integers(3, 6), st.integers(0, 10**6), st.sampled_from((None, 5.0, 100.0)))
def test_a_mesh_that_nobody_joins_or_leaves_comes_to_rest(number: int, seed: int, demand: float | None) -> None:
    """`settle` fails where there is no end, or where a step leaves layers alone."""
    chance = random.Random(seed)
    simulated = joined(drawn(number, 6, chance), 6, demand)
    assert propose(simulated.mesh) == []
    for leaving in chance.sample(simulated.mesh.machines, 2):
        simulated.leave(leaving.key)
        simulated.settle()
        assert propose(simulated.mesh) == []


@pytest.mark.parametrize(("number", "num_layers"), [(3, 12), (30, 24), (1000, 16)])
def test_meshes_of_many_sizes_stay_whole_and_move_little(number: int, num_layers: int) -> None:
    chance = random.Random(1)
    machines = drawn(number, num_layers, chance)
    simulated = Simulated(Mesh(num_layers, ()))
    for newcomer in machines:
        simulated.join(newcomer)
    assert simulated.mesh.is_whole()
    settled = simulated.settle()
    assert settled <= max(3, number // 10)
    bound = sum(1000 / one.ms_per_layer for one in machines) / num_layers
    assert simulated.mesh.bottleneck() > bound * (0.6 if number > 3 else 0.1)
    if number <= 30:
        assert routed(simulated.mesh, 5 * number, chance) > simulated.mesh.bottleneck() / 3


def test_few_move_when_one_leaves() -> None:
    chance = random.Random(2)
    simulated = joined(drawn(12, 12, chance), 12)
    before = simulated.num_loads
    gone = [one.key for one in chance.sample(simulated.mesh.machines, 4)]
    for key in gone:
        simulated.leave(key)
        simulated.settle()
    assert simulated.num_loads - before <= 2 * len(gone)
