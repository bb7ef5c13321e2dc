"""Which nodes a session goes through. Pure: candidates in, a route out, chance handed in.

A route covers every layer once. Shards may overlap: a hop may start inside its node's shard, and always goes on to the
shard's end, so the route with the fewest hops is found by walking from layer to layer. Among routes of as few hops the
least loaded nodes win, then chance.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tracker.words import layers_in_words


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that is online, its shard [start_layer, end_layer) and the sessions that run through it."""

    peer_id: str
    start_layer: int
    end_layer: int
    load: int = 0


@dataclass(frozen=True, slots=True)
class RouteElement:
    peer_id: str
    start_layer: int
    end_layer: int


class NoRoute(Exception):
    """`missing` holds the half-open ranges of layers that no candidate holds."""

    def __init__(self, missing: Sequence[tuple[int, int]]) -> None:
        self.missing = tuple(missing)
        super().__init__(_in_words(self.missing))


def find_route(shards: Sequence[Candidate], num_layers: int, rng: random.Random) -> list[RouteElement]:
    """The hops in order, the head first. Raises NoRoute."""
    missing = missing_layers(shards, num_layers)
    if missing:
        raise NoRoute(missing)
    num_hops = _hops_to_the_end(shards, num_layers)
    route, layer = [], 0
    while layer < num_layers:
        shortest = [shard for shard in _holders(shards, layer) if num_hops[shard.end_layer] == num_hops[layer] - 1]
        chosen = min(shortest, key=lambda shard: (shard.load, rng.random()))
        route.append(RouteElement(chosen.peer_id, layer, chosen.end_layer))
        layer = chosen.end_layer
    return route


def missing_layers(shards: Sequence[Candidate], num_layers: int) -> list[tuple[int, int]]:
    """The half-open ranges of layers that nobody holds, in order."""
    missing, covered = [], 0
    for shard in sorted(shards, key=lambda shard: shard.start_layer):
        if shard.start_layer > covered:
            missing.append((covered, min(shard.start_layer, num_layers)))
        covered = max(covered, shard.end_layer)
        if covered >= num_layers:
            return missing
    return [*missing, (covered, num_layers)]


def _hops_to_the_end(shards: Sequence[Candidate], num_layers: int) -> list[int]:
    """For each layer the fewest hops from it to the last; every layer has a holder."""
    num_hops = [0] * (num_layers + 1)
    for layer in reversed(range(num_layers)):
        num_hops[layer] = 1 + min(num_hops[shard.end_layer] for shard in _holders(shards, layer))
    return num_hops


def _holders(shards: Sequence[Candidate], layer: int) -> list[Candidate]:
    return [shard for shard in shards if shard.start_layer <= layer < shard.end_layer]


def _in_words(missing: Sequence[tuple[int, int]]) -> str:
    *others, last = [layers_in_words(start, end) for start, end in missing]
    named = f"{', '.join(others)} and {last}" if others else last
    is_one_layer = len(missing) == 1 and missing[0][1] - missing[0][0] == 1
    return f"{named} {'has' if is_one_layer else 'have'} no node online"
