from __future__ import annotations

import random

import pytest

from bench.placement import large, small
from tests.tracker.simulated import drawn, optimum


@pytest.mark.parametrize("seed", range(3))
def test_no_mesh_does_more_than_the_best_there_is(seed: int) -> None:
    found = small(seed)
    assert 0.4 < found.joined <= 1 + 1e-6
    assert 0.8 < found.planned <= 1 + 1e-6


def test_a_large_mesh_is_told_in_a_row() -> None:
    found = large(6, 8)
    assert 0 < found.over_bound <= 1
    assert len(found.row()) == 6


def test_the_best_of_two_halves_is_two_halves() -> None:
    machines = drawn(2, 2, random.Random(1), most_layers=1)
    assert optimum(machines, 2) == pytest.approx(min(1000 / one.ms_per_layer for one in machines))
