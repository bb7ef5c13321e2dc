"""Which nodes a session goes through. Pure: candidates in, a route out, chance handed in.

A route covers every layer once. Shards may overlap: a hop may start inside its node's shard, and always goes on to the
shard's end or the route's, so the route with the fewest hops is found by walking from layer to layer. Among routes of
as few hops the nodes win that have the least to do, by their load and their speed, then chance.

Not every candidate is as welcome: one that has more to do than others, one without room for the session, or one that
failed a moment ago and is tried again, is taken only where no route exists without it. So sessions spread over routes
of more hops too, once those of fewest have enough: what a mesh can do is what all of it does (tracker/meshes.py).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tracker.words import layers_in_words

EASY_LOAD = 8  # sessions that a node works together nearly as fast as one (bench.engine)
NEXT_LOAD = 1.5  # where that is too little, so many times more, and so on
AS_FAST = 1.25


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that is online, its shard [start_layer, end_layer) and the sessions that run through it."""

    peer_id: str
    start_layer: int
    end_layer: int
    load: int = 0
    room_tokens: int | None = None  # that a new session finds in its caches; None: it hasn't said
    is_on_trial: bool = False  # it failed a moment ago, and nobody knows yet whether it works again
    ms_per_layer: float | None = None  # of one token; None: it hasn't been measured

    def has_room(self, num_tokens: int) -> bool:
        return self.room_tokens is None or self.room_tokens >= num_tokens

    def with_session(self, num_tokens: int) -> Candidate:
        room_tokens = None if self.room_tokens is None else max(0, self.room_tokens - num_tokens)
        return replace(self, load=self.load + 1, room_tokens=room_tokens)


@dataclass(frozen=True, slots=True)
class RouteElement:
    peer_id: str
    start_layer: int
    end_layer: int


class NoRoute(Exception):
    """`missing` holds the half-open ranges of layers that no candidate holds."""

    def __init__(self, missing: Sequence[tuple[int, int]]) -> None:
        self.missing = tuple(missing)
        super().__init__(self.in_words())

    def in_words(self, closed: Sequence[tuple[int, int]] = ()) -> str:
        """`closed`: the layers of nodes that are online and take no sessions."""
        is_held = any(max(a, c) < min(b, d) for a, b in self.missing for c, d in closed)
        return _in_words(self.missing, "no node that takes sessions" if is_held else "no node online")


def find_route(
    shards: Sequence[Candidate], num_layers: int, rng: random.Random, need_tokens: int = 0
) -> list[RouteElement]:
    """The hops in order, the head first, for a session of so many tokens. Raises NoRoute."""
    return find_span(shards, 0, num_layers, rng, need_tokens)


def taken(shards: Sequence[Candidate], route: Sequence[RouteElement], num_tokens: int) -> list[Candidate]:
    """The same nodes once a session of so many tokens goes this route."""
    on_route = {element.peer_id for element in route}
    return [shard.with_session(num_tokens) if shard.peer_id in on_route else shard for shard in shards]


def find_span(
    shards: Sequence[Candidate], start_layer: int, end_layer: int, rng: random.Random, need_tokens: int = 0
) -> list[RouteElement]:
    """Hops for exactly the layers [start_layer, end_layer); none for none. Raises NoRoute."""
    within = [cut for shard in shards if (cut := _cut(shard, start_layer, end_layer))]
    missing = missing_layers(within, end_layer, start_layer)
    if missing:
        raise NoRoute(missing)
    enough = next(tier for tier in _tiers(within, need_tokens) if not missing_layers(tier, end_layer, start_layer))
    return _shortest(enough, start_layer, end_layer, rng)


def missing_layers(shards: Sequence[Candidate], end_layer: int, start_layer: int = 0) -> list[tuple[int, int]]:
    """The half-open ranges of [start_layer, end_layer) that nobody holds, in order."""
    missing, covered = [], start_layer
    for shard in sorted(shards, key=lambda shard: shard.start_layer):
        if covered >= end_layer:
            break
        if shard.start_layer > covered:
            missing.append((covered, min(shard.start_layer, end_layer)))
        covered = max(covered, shard.end_layer)
    return [*missing, (covered, end_layer)] if covered < end_layer else missing


def _cut(shard: Candidate, start_layer: int, end_layer: int) -> Candidate | None:
    """What of the shard lies within; None for nothing."""
    start, end = max(shard.start_layer, start_layer), min(shard.end_layer, end_layer)
    return replace(shard, start_layer=start, end_layer=end) if start < end else None


def _tiers(shards: Sequence[Candidate], need_tokens: int) -> Iterator[Sequence[Candidate]]:
    """The most welcome first, then more and more of them."""
    roomy = [shard for shard in shards if shard.has_room(need_tokens)]
    sound = [shard for shard in roomy if not shard.is_on_trial]
    yield from _calm_tiers(sound)
    yield sound
    yield roomy
    yield shards


def _calm_tiers(shards: Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Those that have little to do for their speed, then more and more of them; none where a speed isn't known."""
    paces = [_work_ms(shard, shard.start_layer) for shard in shards]
    if not all(paces):
        return
    busy = [shard.load * pace for shard, pace in zip(shards, paces, strict=True)]
    limit, most = EASY_LOAD * statistics.median(paces) if paces else 0.0, max(busy, default=0.0)
    while limit < most:
        yield [shard for shard, much in zip(shards, busy, strict=True) if much <= limit]
        limit *= NEXT_LOAD


def _work_ms(shard: Candidate, layer: int) -> float:
    """Of one token from this layer to the shard's end; 0 where that isn't known."""
    return (shard.ms_per_layer or 0.0) * (shard.end_layer - layer)


def _shortest(shards: Sequence[Candidate], start_layer: int, end_layer: int, rng: random.Random) -> list[RouteElement]:
    """Every layer has a holder."""
    num_hops = _hops_to_the_end(shards, start_layer, end_layer)
    route, layer = [], start_layer
    while layer < end_layer:
        shortest = [shard for shard in _holders(shards, layer) if num_hops[shard.end_layer] == num_hops[layer] - 1]
        chosen = min(_least_busy(shortest, layer), key=lambda shard: (shard.load, rng.random()))
        route.append(RouteElement(chosen.peer_id, layer, chosen.end_layer))
        layer = chosen.end_layer
    return route


def _least_busy(shards: Sequence[Candidate], layer: int) -> Sequence[Candidate]:
    """Those that would be about as fast with one session more."""
    times = [(shard.load + 1) * _work_ms(shard, layer) for shard in shards]
    if not all(shard.ms_per_layer for shard in shards):
        return shards
    return [shard for shard, time in zip(shards, times, strict=True) if time <= AS_FAST * min(times)]


def _hops_to_the_end(shards: Sequence[Candidate], start_layer: int, end_layer: int) -> dict[int, int]:
    """For each layer the fewest hops from it to the last."""
    num_hops = {end_layer: 0}
    for layer in reversed(range(start_layer, end_layer)):
        num_hops[layer] = 1 + min(num_hops[shard.end_layer] for shard in _holders(shards, layer))
    return num_hops


def _holders(shards: Sequence[Candidate], layer: int) -> list[Candidate]:
    return [shard for shard in shards if shard.start_layer <= layer < shard.end_layer]


def _in_words(missing: Sequence[tuple[int, int]], what: str) -> str:
    *others, last = [layers_in_words(start, end) for start, end in missing]
    named = f"{', '.join(others)} and {last}" if others else last
    is_one_layer = len(missing) == 1 and missing[0][1] - missing[0][0] == 1
    return f"{named} {'has' if is_one_layer else 'have'} {what}"
