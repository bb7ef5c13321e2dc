"""What a mesh can be expected to do: against meshes that were measured, and against what follows from their figures."""

from __future__ import annotations

import pytest

from tests.tracker.simulated import machine
from tracker.forecasts import BATCH_GAIN, HEAD_MS, HOP_MS, expected_ms, in_words, predict
from tracker.meshes import Machine, Mesh


def of(name: str, ms_per_layer: float, start: int, end: int, rtt_ms: float = 0.0) -> Machine:
    return machine(name, 30, ms_per_layer, rtt_ms).at(start, end)


# bench.hops and bench.engine on one machine with two cores (docs/benchmarks.md): SmolLM2-135M, whose output takes as
# long as eight of its thirty layers, in bfloat16. A layer took 26.5 ms / (15 + 8) there, and 36.2 ms / (30 + 8).
MEASURED = [
    ("one node, bench.hops", 1.15, [(0, 30)], 22.21),
    ("two nodes by the tunnel, bench.hops", 1.15, [(0, 15), (15, 30)], 20.11),
    ("one node, bench.engine", 0.953, [(0, 30)], 25.31),
    ("two nodes by the tunnel, bench.engine", 0.953, [(0, 15), (15, 30)], 22.94),
]


@pytest.mark.parametrize(("what", "ms_per_layer", "shards", "tokens_per_s"), MEASURED, ids=[row[0] for row in MEASURED])
def test_it_is_right_within_a_seventh_of_meshes_that_were_measured(
    what: str, ms_per_layer: float, shards: list[tuple[int, int]], tokens_per_s: float
) -> None:
    machines = tuple(of(str(at), ms_per_layer, *shard) for at, shard in enumerate(shards))
    forecast = predict(Mesh(30, machines, tail_layers=8.0))
    assert forecast.tokens_per_s_one == pytest.approx(tokens_per_s, rel=1 / 7)


def test_eight_chats_on_one_machine_do_as_was_measured() -> None:
    forecast = predict(Mesh(30, (of("a", 0.953, 0, 30),), tail_layers=8.0))
    assert forecast.tokens_per_s_all == pytest.approx(136.6, rel=1 / 7)


def test_a_chat_takes_the_routes_of_fewest_hops_by_those_that_are_about_as_fast_as_the_fastest() -> None:
    fast, other, slow, half = (
        of("fast", 1.0, 0, 30),
        of("other", 1.2, 0, 30),
        of("slow", 3.0, 0, 30),
        of("half", 0.1, 0, 15),
    )
    forecast = predict(Mesh(30, (fast, other, slow, half)))
    assert (forecast.num_hops, forecast.ms_between) == (1, HEAD_MS)
    assert forecast.ms_computing == pytest.approx(33.0)


def test_the_heads_way_to_the_relay_is_in_every_hop() -> None:
    far, near = of("far", 1.0, 0, 10, 50.0), [of("b", 1.0, 10, 20, 10.0), of("c", 1.0, 20, 30, 10.0)]
    forecast = predict(Mesh(30, (far, *near)))
    assert forecast.ms_between == pytest.approx(HEAD_MS + 2 * (HOP_MS + 50.0 + 10.0))
    assert forecast.tokens_per_s_one == pytest.approx(1000 / expected_ms(Mesh(30, (far, *near))))


def test_it_names_what_is_weak_what_hangs_on_one_and_what_is_missing() -> None:
    forecast = predict(Mesh(30, (of("a", 1.0, 0, 10), of("b", 1.0, 5, 20), of("c", 1.0, 20, 30))))
    assert (forecast.weakest, forecast.fragile, forecast.missing) == (((10, 20),), ((0, 5), (10, 30)), ())
    assert forecast.tokens_per_s_all == pytest.approx(BATCH_GAIN * 1000 / 15)
    broken = predict(Mesh(30, (of("a", 1.0, 0, 10), of("c", 1.0, 20, 30))))
    assert (broken.missing, broken.tokens_per_s_one, broken.is_whole) == (((10, 20),), 0.0, False)


def test_ranges_in_words() -> None:
    assert in_words(((0, 6), (9, 10))) == "layers 0–5 and layer 9"
    assert in_words(((0, 1), (2, 3), (4, 5), (6, 7))) == "layer 0, layer 2, layer 4 and more"
    assert in_words(()) == ""
