from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.test_routing import NUM_LAYERS, covered, shards
from tracker.detours import detour
from tracker.routing import Candidate, NoRoute, RouteElement, find_route

HEAD, MIDDLE, TAIL = RouteElement("head", 0, 4), RouteElement("middle", 4, 8), RouteElement("tail", 8, 12)
ROUTE = [HEAD, MIDDLE, TAIL]
KEPT = [Candidate("head", 0, 4, -1), Candidate("tail", 8, 12, -1)]


def other_route(shards: list[Candidate], lost: int = 1, head_end: int = 4, need_tokens: int = 0) -> list[RouteElement]:
    return detour(ROUTE, lost, shards, head_end, random.Random(1), need_tokens)


def test_only_the_lost_hop_is_replaced() -> None:
    route = other_route([*KEPT, Candidate("spare", 4, 8), Candidate("other tail", 8, 12)])
    assert route == [HEAD, RouteElement("spare", 4, 8), TAIL]


def test_a_larger_shard_takes_over_no_more_than_is_lost() -> None:
    assert other_route([*KEPT, Candidate("whole", 0, 12)]) == [HEAD, RouteElement("whole", 4, 8), TAIL]


def test_a_spare_with_room_is_taken_before_one_without() -> None:
    spares = [Candidate("full", 4, 8, 0, 10), Candidate("roomy", 4, 8, 3, 99)]
    assert other_route([*KEPT, *spares], need_tokens=50)[1].peer_id == "roomy"


def test_a_hop_that_is_gone_as_well_is_replaced_too() -> None:
    assert other_route([KEPT[0], Candidate("whole", 0, 12)]) == [HEAD, RouteElement("whole", 4, 12)]


def test_a_node_of_the_route_may_take_over_by_working_more_layers() -> None:
    assert other_route([KEPT[0], Candidate("tail", 4, 12, -1)]) == [HEAD, RouteElement("tail", 4, 12)]


def test_of_other_nodes_those_on_the_route_already_are_taken_first() -> None:
    shards = [Candidate("head", 0, 4, -1), Candidate("tail", 5, 12, -1), Candidate("new", 5, 12), Candidate("x", 4, 5)]
    assert other_route(shards)[-1] == RouteElement("tail", 8, 12)
    assert other_route(shards[:1] + shards[2:])[-1] == RouteElement("new", 5, 12)


def test_the_head_works_more_of_its_own_layers_where_nobody_else_has_them() -> None:
    route = other_route([*KEPT, Candidate("spare", 6, 12)], head_end=6)
    assert route == [RouteElement("head", 0, 6), RouteElement("spare", 6, 12)]
    assert other_route(KEPT, lost=2, head_end=12) == [RouteElement("head", 0, 12)]


def test_layers_that_nobody_else_has_are_named() -> None:
    with pytest.raises(NoRoute, match="layers 4–7 have no node online"):
        other_route(KEPT)


@given(shards(), st.integers(1, 3), st.integers())
def test_a_detour_covers_every_layer_once_from_the_same_head(
    candidates: list[Candidate], which: int, seed: int
) -> None:
    rng, head = random.Random(seed), Candidate("head", 0, 5)
    try:
        route = find_route([head, *[shard for shard in candidates if shard.start_layer]], NUM_LAYERS, rng)
    except NoRoute:
        return
    if len(route) == 1:
        return
    lost = min(which, len(route) - 1)
    others = [shard for shard in candidates if shard.peer_id != route[lost].peer_id]
    try:
        found = detour(route, lost, others, head.end_layer, rng)
    except NoRoute:
        assert not set(range(head.end_layer, NUM_LAYERS)) <= covered(others)
        return
    assert [layer for hop in found for layer in range(hop.start_layer, hop.end_layer)] == list(range(NUM_LAYERS))
    assert found[0].peer_id == "head"
    assert len({hop.peer_id for hop in found}) == len(found)
    assert route[lost].peer_id not in {hop.peer_id for hop in found}
