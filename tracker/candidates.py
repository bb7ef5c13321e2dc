"""Which nodes may be on a session's route now, and why others that are online may not."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, F, Q, Sum

from relay import presence
from tracker.breaker import State
from tracker.models import ChatSession, LanguageModel, Node
from tracker.probes import prober
from tracker.routing import Candidate


@dataclass(frozen=True, slots=True)
class Candidates:
    nodes: dict[str, Node]  # by peer id
    shards: list[Candidate]
    closed: list[tuple[int, int]]  # the layers of nodes that are online and take no session now
    left_out: list[str]  # in words: which nodes these are, and why

    def but(self, peer_ids: Collection[str]) -> list[Candidate]:
        return [shard for shard in self.shards if shard.peer_id not in peer_ids]


def candidates_of(model: LanguageModel, now: datetime, route: Collection[str] = ()) -> Candidates:
    """`route`: peer ids of a session's route already. They have room for it, and may go on with it whatever else."""
    online = Node.objects.filter(model=model).online(now, presence.present()).select_related("shard", "model")
    found = Candidates({}, [], [], [])
    for node in loaded(online.order_by("name"), now):
        why = None if node.peer_id in route else node.closed_to_sessions(now)
        if why:
            found.closed.append((node.shard.start_layer, node.shard.end_layer))
            found.left_out.append(f"node {node.name} {why}")
            continue
        found.nodes[node.peer_id] = node
        found.shards.append(_candidate(node, now, is_on_route=node.peer_id in route))
    return found


def loaded(nodes: Iterable[Node], now: datetime) -> list[Node]:
    """The same, each told what runs through it.

    Asked from the sessions that run, which are few: joined to the nodes, all that ever went through them would be
    counted for each request.
    """
    nodes = list(nodes)
    running = ChatSession.objects.running(now).filter(hops__epoch=F("epoch"), hops__node__in=nodes).order_by()
    given = Sum("max_tokens", filter=Q(started__gt=F("hops__node__last_seen")), default=0)
    sums = running.values_list("hops__node").annotate(load=Count("pk"), given_tokens=given)
    loads = {pk: (load, given_tokens) for pk, load, given_tokens in sums}
    for node in nodes:
        node.load, node.given_tokens = loads.get(node.pk, (0, 0))
    return nodes


def _candidate(node: Node, now: datetime, *, is_on_route: bool) -> Candidate:
    """One that is on the route wins over another as good, because its caches are filled; unless it is to be left."""
    layers = node.shard.start_layer, node.shard.end_layer
    if is_on_route:
        return Candidate(node.peer_id, *layers, -1, None, node.is_draining, node.ms_per_layer)
    is_on_trial = node.breaker.state(now) == State.HALF_OPEN or prober.is_asking(node)
    return Candidate(node.peer_id, *layers, node.load, node.room_tokens, is_on_trial, node.ms_per_layer)
