from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tracker.dashboard.timeline import Lane, Timeline, timeline

ROUTE = [
    {"node": "a", "layers": "layers 0–5", "start_layer": 0},
    {"node": "b", "layers": "layers 6–8", "start_layer": 6},
    {"node": "c", "layers": "layers 9–11", "start_layer": 9},
]


def step(number: int, at_ms: float, *hops: Sequence[float], epoch: int = 0) -> dict[str, Any]:
    return {"step": number, "epoch": epoch, "position": number, "tokens": 1, "at_ms": at_ms, "hops": list(hops)}


def drawn(*steps: dict[str, Any], routes: Any = None) -> Timeline:
    made = timeline(steps, routes or {0: ROUTE[:2]})
    assert made
    return made


def lane_of(made: Timeline, node: str) -> Lane:
    return next(lane for lane in made.lanes if lane.node == node)


def test_a_step_is_drawn_in_the_lane_of_each_hop_one_after_the_other() -> None:
    made = drawn(step(1, 100, [4, 0, 0], [3, 2, 1]))
    assert made.length_ms == 10
    assert lane_of(made, "a").paths == {"compute": "M0.0 2h400.0v20H0.0z", "network": "", "queue": ""}
    assert lane_of(made, "b").paths == {
        "compute": "M600.0 2h300.0v20H600.0z",
        "network": "M400.0 11h100.0v2H400.0zM900.0 11h100.0v2H900.0z",
        "queue": "M500.0 7h100.0v10H500.0z",
    }


def test_time_that_no_hop_took_is_left_free() -> None:
    made = drawn(step(1, 0, [10, 0, 0]), step(2, 90, [10, 0, 0]), routes={0: ROUTE[:1]})
    assert made.lanes[0].paths["compute"] == "M0.0 2h100.0v20H0.0zM900.0 2h100.0v20H900.0z"
    assert made.in_words == "its last 2 steps, 2 tokens in 100 ms"


def test_what_is_too_short_to_see_is_drawn_all_the_same() -> None:
    assert "h0.4v10" in drawn(step(1, 0, [1000, 0, 0.001]), routes={0: ROUTE[:1]}).lanes[0].paths["queue"]


def test_a_hop_that_was_left_keeps_its_lane_below_the_one_that_took_over() -> None:
    after = [ROUTE[0], {"node": "d", "layers": "layers 6–8", "start_layer": 6}, ROUTE[2]]
    hops = [1, 0, 0], [1, 0, 0], [1, 0, 0]
    made = drawn(step(1, 0, *hops), step(2, 5, *hops, epoch=1), routes={0: ROUTE, 1: after})
    assert [lane.node for lane in made.lanes] == ["a", "d", "b", "c"]
    assert [[hop["node"] for hop in row["hops"]] for row in made.rows] == [["a", "b", "c"], ["a", "d", "c"]]


@pytest.mark.parametrize("routes", [{}, {0: []}, {0: ROUTE[:2]}])
def test_hops_of_a_route_that_isnt_written_yet_have_numbers(routes: Any) -> None:
    hops = [[1.0, 0.0, 0.0]] * 3
    assert [lane.node for lane in drawn(step(1, 0, *hops, epoch=5), routes=routes or {7: []}).lanes] == [
        "hop 1",
        "hop 2",
        "hop 3",
    ]


def test_a_step_that_took_no_time_breaks_nothing() -> None:
    made = drawn(step(1, 0, [0, 0, 0], [0, 0, 0]))
    assert (made.lanes, made.length_ms) == ([], 1.0)
    assert made.in_words == "its only step, 1 token in 1.0 ms"


def test_without_a_step_there_is_no_picture() -> None:
    assert timeline([], {0: ROUTE}) is None
