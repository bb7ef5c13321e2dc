from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker.routing import Candidate, NoRoute, RouteElement, find_route, find_span, missing_layers, taken

NUM_LAYERS = 12


@st.composite
def shards(draw: st.DrawFn) -> list[Candidate]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, NUM_LAYERS - 1))
        end = draw(st.integers(start + 1, NUM_LAYERS))
        found.append(Candidate(f"{number:08x}", start, end, draw(st.integers(0, 3))))
    return found


def covered(candidates: list[Candidate]) -> set[int]:
    return {layer for shard in candidates for layer in range(shard.start_layer, shard.end_layer)}


@given(shards(), st.integers())
def test_a_route_covers_every_layer_once_or_the_missing_ones_are_named(candidates: list[Candidate], seed: int) -> None:
    missing = set(range(NUM_LAYERS)) - covered(candidates)
    if missing:
        with pytest.raises(NoRoute) as refused:
            find_route(candidates, NUM_LAYERS, random.Random(seed))
        assert {layer for start, end in refused.value.missing for layer in range(start, end)} == missing
        return
    route = find_route(candidates, NUM_LAYERS, random.Random(seed))
    assert [layer for hop in route for layer in range(hop.start_layer, hop.end_layer)] == list(range(NUM_LAYERS))
    shard_of = {shard.peer_id: shard for shard in candidates}
    assert all(shard_of[hop.peer_id].start_layer <= hop.start_layer for hop in route)
    assert all(shard_of[hop.peer_id].end_layer == hop.end_layer for hop in route)


@given(shards())
def test_no_shorter_route_exists(candidates: list[Candidate]) -> None:
    if covered(candidates) != set(range(NUM_LAYERS)):
        return
    layer = fewest = 0
    while layer < NUM_LAYERS:  # as far as possible with each hop is known to be the fewest
        layer = max(shard.end_layer for shard in candidates if shard.start_layer <= layer)
        fewest += 1
    assert len(find_route(candidates, NUM_LAYERS, random.Random(1))) == fewest


@given(shards())
def test_ranges_of_missing_layers_are_apart_and_in_order(candidates: list[Candidate]) -> None:
    bounds = [bound for pair in missing_layers(candidates, NUM_LAYERS) for bound in pair]
    assert bounds == sorted(set(bounds))


def test_overlapping_shards_give_hops_that_start_inside_a_shard() -> None:
    candidates = [Candidate("a", 0, 16), Candidate("b", 8, 24), Candidate("c", 16, 32)]
    route = find_route(candidates, 32, random.Random(1))
    assert route == [RouteElement("a", 0, 16), RouteElement("c", 16, 32)]
    route = find_route(candidates[:2], 24, random.Random(1))
    assert route == [RouteElement("a", 0, 16), RouteElement("b", 16, 24)]


def test_the_least_loaded_of_equal_nodes_is_taken() -> None:
    candidates = [Candidate("busy", 0, 12, 2), Candidate("idle", 0, 12, 0), Candidate("half", 0, 12, 1)]
    assert find_route(candidates, 12, random.Random(1))[0].peer_id == "idle"


def test_equally_loaded_nodes_take_turns_by_chance() -> None:
    candidates = [Candidate("a", 0, 12), Candidate("b", 0, 12)]
    rng = random.Random(1)
    assert {find_route(candidates, 12, rng)[0].peer_id for _ in range(20)} == {"a", "b"}


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([Candidate("a", 0, 12)], "layers 12–17 have no node online"),
        ([Candidate("a", 0, 5), Candidate("b", 6, 18)], "layer 5 has no node online"),
        ([Candidate("a", 6, 12)], "layers 0–5 and layers 12–17 have no node online"),
        ([], "layers 0–17 have no node online"),
        ([Candidate("a", 1, 4), Candidate("b", 5, 17)], "layer 0, layer 4 and layer 17 have no node online"),
    ],
)
def test_it_names_the_layers_nobody_serves(candidates: list[Candidate], message: str) -> None:
    with pytest.raises(NoRoute) as refused:
        find_route(candidates, 18, random.Random(1))
    assert str(refused.value) == message


def test_a_node_without_room_is_left_out_where_others_have_some() -> None:
    full, roomy = Candidate("full", 0, 12, 0, room_tokens=99), Candidate("roomy", 0, 12, 5, room_tokens=100)
    assert find_route([full, roomy], 12, random.Random(1), need_tokens=100)[0].peer_id == "roomy"
    assert find_route([full, roomy], 12, random.Random(1), need_tokens=99)[0].peer_id == "full"
    assert find_route([full], 12, random.Random(1), need_tokens=100)[0].peer_id == "full"


def test_a_node_that_has_not_told_its_room_has_some() -> None:
    full, unknown = Candidate("full", 0, 12, 0, room_tokens=0), Candidate("unknown", 0, 12, 5)
    assert find_route([full, unknown], 12, random.Random(1), need_tokens=1)[0].peer_id == "unknown"


def test_more_hops_with_room_are_better_than_fewer_without() -> None:
    halves = [Candidate("a", 0, 6, 0, 100), Candidate("b", 6, 12, 0, 100)]
    route = find_route([Candidate("full", 0, 12, 0, 0), *halves], 12, random.Random(1), need_tokens=100)
    assert [hop.peer_id for hop in route] == ["a", "b"]


def test_a_node_on_trial_is_the_last_choice_but_for_one_without_room() -> None:
    trial, other = Candidate("trial", 0, 12, is_on_trial=True), Candidate("other", 0, 12, 9, room_tokens=10)
    assert find_route([trial, other], 12, random.Random(1), need_tokens=10)[0].peer_id == "other"
    assert find_route([trial, other], 12, random.Random(1), need_tokens=11)[0].peer_id == "trial"


def measured(peer_id: str, start: int, end: int, load: int, ms_per_layer: float = 1.0) -> Candidate:
    return Candidate(peer_id, start, end, load, ms_per_layer=ms_per_layer)


def test_a_route_of_more_hops_is_taken_once_that_of_fewest_has_enough_to_do() -> None:
    halves = [measured("a", 0, 6, 0), measured("b", 6, 12, 0)]
    assert [hop.peer_id for hop in find_route([measured("whole", 0, 12, 4), *halves], 12, random.Random(1))] == [
        "whole"
    ]
    assert [hop.peer_id for hop in find_route([measured("whole", 0, 12, 5), *halves], 12, random.Random(1))] == [
        "a",
        "b",
    ]


def test_where_all_have_much_to_do_those_with_less_are_taken() -> None:
    halves = [measured("a", 0, 6, 30), measured("b", 6, 12, 30)]
    assert find_route([measured("whole", 0, 12, 60), *halves], 12, random.Random(1))[0].peer_id == "a"
    assert find_route([measured("whole", 0, 12, 10), *halves], 12, random.Random(1))[0].peer_id == "whole"


def test_a_faster_node_gets_more_sessions() -> None:
    fast, slow = measured("fast", 0, 12, 2, 1.0), measured("slow", 0, 12, 0, 4.0)
    assert find_route([fast, slow], 12, random.Random(1))[0].peer_id == "fast"
    assert find_route([measured("fast", 0, 12, 5, 1.0), slow], 12, random.Random(1))[0].peer_id == "slow"


def test_where_a_speed_is_not_known_only_loads_count() -> None:
    fast, unknown = measured("fast", 0, 12, 2, 0.1), Candidate("unknown", 0, 12, 1)
    assert find_route([fast, unknown], 12, random.Random(1))[0].peer_id == "unknown"


def test_a_node_on_the_sessions_route_is_kept_though_another_is_faster() -> None:
    kept, fast = measured("kept", 0, 12, -1, 4.0), measured("fast", 0, 12, 0, 0.1)
    assert find_route([kept, fast], 12, random.Random(1))[0].peer_id == "kept"


def test_sessions_spread_until_the_whole_mesh_does_what_it_can() -> None:
    """As many as go through each, the slower ones fewer: within a third of what they could do at best."""
    paces = {"a": 1.0, "b": 2.0, "c": 1.0, "d": 4.0, "whole": 1.0}
    shards = [measured("whole", 0, 12, 0), *(measured(name, 0, 6, 0, paces[name]) for name in "ab")]
    shards += [measured(name, 6, 12, 0, paces[name]) for name in "cd"]
    work = dict.fromkeys(paces, 0.0)
    for seed in range(400):
        route = find_route(shards, 12, random.Random(seed))
        for hop in route:
            work[hop.peer_id] += paces[hop.peer_id] * (hop.end_layer - hop.start_layer)
        shards = taken(shards, route, 0)
    best = 1000 / 12 + min(1000 / 6 + 1000 / 12, 1000 / 6 + 1000 / 24)
    assert 400 * 1000 / max(work.values()) > best * 2 / 3


@given(shards(), st.integers(0, NUM_LAYERS), st.integers(0, NUM_LAYERS), st.integers())
def test_a_span_covers_exactly_its_layers_or_the_missing_ones_are_named(
    candidates: list[Candidate], one: int, other: int, seed: int
) -> None:
    start, end = sorted((one, other))
    missing = set(range(start, end)) - covered(candidates)
    if missing:
        with pytest.raises(NoRoute) as refused:
            find_span(candidates, start, end, random.Random(seed))
        assert {layer for first, last in refused.value.missing for layer in range(first, last)} == missing
        return
    span = find_span(candidates, start, end, random.Random(seed))
    assert [layer for hop in span for layer in range(hop.start_layer, hop.end_layer)] == list(range(start, end))
    shard_of = {shard.peer_id: shard for shard in candidates}
    assert all(shard_of[hop.peer_id].end_layer >= hop.end_layer for hop in span)
    assert len({hop.peer_id for hop in span}) == len(span)


def test_a_session_is_a_load_and_takes_room_where_it_goes_through() -> None:
    here, there, unknown = Candidate("a", 0, 6, 1, 100), Candidate("b", 0, 6, 1, 100), Candidate("c", 6, 12)
    route = [RouteElement("a", 0, 6), RouteElement("c", 6, 12)]
    assert taken([here, there, unknown], route, 60) == [
        Candidate("a", 0, 6, 2, 40),
        there,
        Candidate("c", 6, 12, 1, None),
    ]
    assert taken([here], route, 200) == [Candidate("a", 0, 6, 2, 0)]
