"""The rows of a model's nodes as placement's machines: who counts, what is taken for who hasn't said, what is asked.

A node counts from its registration on, before it has loaded anything: several that begin together must not all take
the same layers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F, Q, QuerySet, Sum

from tracker.forecasts import predict
from tracker.meshes import Machine, Mesh
from tracker.models import ChatSession, LanguageModel, Move, Node

DEFAULT_MS_PER_LAYER, DEFAULT_RTT_MS = 1.0, 20.0  # of who hasn't been measured, where nobody else has either
DEMAND_WITHIN = timedelta(minutes=10)


def here(model: LanguageModel, now: datetime) -> QuerySet[Node]:
    """Those that serve, or load, or wait for approval, and that nobody wants to be rid of."""
    nodes = Node.objects.filter(model=model, is_registered=True, lease_until__gt=now, shard__isnull=False)
    let_in = nodes.exclude(status=Node.Status.REVOKED).filter(Q(banned_until=None) | Q(banned_until__lte=now))
    return let_in.exclude(duty=Node.Duty.DRAINING).select_related("shard").order_by("name")


def settled(model: LanguageModel, now: datetime) -> QuerySet[Node]:
    """As `here`, of the approved, with those that were heard of a moment ago: they may only be starting again."""
    return here(model, now - timedelta(seconds=settings.REBALANCE_SETTLE_S)).filter(status=Node.Status.APPROVED)


def mesh_for(node: Node, now: datetime) -> Mesh:
    """What a node that registers finds. One that waits for approval sees others that wait, too."""
    others = here(node.model, now).exclude(pk=node.pk).exclude(duty=Node.Duty.PAUSED)
    if node.status != Node.Status.PENDING:
        others = others.filter(status=Node.Status.APPROVED)
    return mesh_of(node.model, [*others], now)


def mesh_of(model: LanguageModel, nodes: Iterable[Node], now: datetime) -> Mesh:
    """Nodes that are moving are where they are going to."""
    nodes = list(nodes)
    targets = {move.node_id: (move.to_start, move.to_end) for move in under_way(model)}
    pace = _typical((node.ms_per_layer for node in nodes), DEFAULT_MS_PER_LAYER)
    rtt = _typical((node.rtt_ms for node in nodes), DEFAULT_RTT_MS)
    machines = [machine_of(node, pace, rtt) for node in nodes]
    placed = [
        machine.at(*targets[node.pk]) if node.pk in targets else machine
        for node, machine in zip(nodes, machines, strict=True)
    ]
    mesh = Mesh(model.num_layers or 1, tuple(placed), tail_layers=tail_layers_of(model))
    return Mesh(mesh.num_layers, mesh.machines, demand_of(model, mesh, now), mesh.tail_layers)


def machine_of(node: Node, pace: float = DEFAULT_MS_PER_LAYER, rtt: float = DEFAULT_RTT_MS) -> Machine:
    """`pace`, `rtt`: what others like it have, where it hasn't been measured."""
    shard = getattr(node, "shard", None)
    loaded_start, loaded_end = shard.loaded if shard else (None, None)
    return Machine(
        key=node.name,
        budget_bytes=node.budget_bytes or 0,
        layer_bytes=node.layer_bytes or 1,
        head_bytes=node.head_bytes or 0,
        tail_bytes=node.tail_bytes or 0,
        ms_per_layer=node.ms_per_layer or pace,
        rtt_ms=rtt if node.rtt_ms is None else node.rtt_ms,
        start_layer=shard.start_layer if shard else None,
        end_layer=shard.end_layer if shard else None,
        is_fixed=not node.picks_layers or node.duty != Node.Duty.WORKS,
        loaded_start=loaded_start,
        loaded_end=loaded_end,
    )


def tail_layers_of(model: LanguageModel) -> float:
    """What the output takes to compute: its weights are read like a layer's."""
    if not model.layer_bytes or not model.tail_bytes:
        return 0.0
    return model.tail_bytes / model.layer_bytes


def demand_of(model: LanguageModel, mesh: Mesh, now: datetime) -> float | None:
    """Tokens a second that were answered lately, and at least what one chat alone takes: a mesh that nobody asks is
    ready for a few. None, without a limit, where nothing can be answered and so nothing is known."""
    if not mesh.is_whole():
        return None
    since = now - DEMAND_WITHIN
    lately = ChatSession.objects.filter(model=model, started__gt=since - DEMAND_WITHIN)
    lately = lately.filter(Q(ended=None) | Q(ended__gt=since)).order_by()
    tokens = lately.aggregate(tokens=Sum(F("completion_tokens")))["tokens"] or 0
    return max(tokens / DEMAND_WITHIN.total_seconds(), predict(mesh).tokens_per_s_one)


def under_way(model: LanguageModel) -> QuerySet[Move]:
    """Moves that were decided on and aren't done."""
    return Move.objects.filter(model=model, state__in=(Move.State.ACCEPTED, Move.State.LOADING))


def _typical(values: Iterable[float | None], default: float) -> float:
    known = [value for value in values if value]
    return statistics.median(known) if known else default
