"""A session's route once one of its hops is lost. Pure: the route and the candidates in, another route out.

The head stays: it has the prompt, the text so far and the client's stream behind it. Of the other hops as many stay as
can, since each that is new has to be filled with all that the session has cached.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

from tracker.routing import Candidate, NoRoute, RouteElement, find_span


def detour(
    route: Sequence[RouteElement],
    lost: int,
    shards: Sequence[Candidate],
    head_end: int,
    rng: random.Random,
    need_tokens: int = 0,
) -> list[RouteElement]:
    """The route with other hops for the layers of the lost one, which is route[lost]; where that can't be, another
    route from the same head. `shards`: who may be on it, without the lost; `head_end`: the end of the head's own shard.
    Raises NoRoute."""
    before, after = list(route[:lost]), list(route[lost + 1 :])
    are_there = {route[0].peer_id} | {shard.peer_id for shard in shards}
    kept = {element.peer_id for element in (*before, *after)}
    if kept <= are_there:
        others = [shard for shard in shards if shard.peer_id not in kept]
        with contextlib.suppress(NoRoute):
            span = find_span(others, route[lost].start_layer, route[lost].end_layer, rng, need_tokens)
            return [*before, *span, *after]
    return _from_the_head(route, shards, head_end, rng, need_tokens)


def _from_the_head(
    route: Sequence[RouteElement], shards: Sequence[Candidate], head_end: int, rng: random.Random, need_tokens: int
) -> list[RouteElement]:
    """The head works on with the layers it has cached; where the others lack some that it holds, with all it holds."""
    head, num_layers = route[0], route[-1].end_layer
    others = [shard for shard in shards if shard.peer_id != head.peer_id]
    with contextlib.suppress(NoRoute):
        return [head, *find_span(others, head.end_layer, num_layers, rng, need_tokens)]
    rest = find_span(others, head_end, num_layers, rng, need_tokens)
    return [RouteElement(head.peer_id, head.start_layer, head_end), *rest]
