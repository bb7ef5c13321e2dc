"""What the tick does for each model: has moves begin that were decided on, and proposes others.

What changed within the last REBALANCE_SETTLE_S moves nobody: a node that only starts again is back before that. A mesh
of the same nodes with the same layers is reckoned again once a minute: what was measured of it may differ by then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.conf import settings

from tracker import machines, moves
from tracker.meshes import Mesh
from tracker.models import LanguageModel, Move, Node
from tracker.proposals import Proposal, propose

logger = logging.getLogger(__name__)

AUTOMATIC = "automatic"
MOVES_AGAIN = timedelta(hours=1)  # a node that has moved
LOOKS_AGAIN = timedelta(minutes=1)
REFUSED_FOR = timedelta(hours=24)  # what somebody has dropped isn't proposed again so soon
Outline = tuple[str, tuple[int, int], bool]
Rebalancing = LanguageModel.Rebalancing


class Rebalancer:
    """Of one process, which remembers the meshes that it has looked at."""

    def __init__(self) -> None:
        self._looked_at: dict[int, tuple[list[Outline], datetime]] = {}

    def look(self, now: datetime) -> None:
        chosen = Node.objects.filter(picks_layers=True).values("model")
        for model in LanguageModel.objects.filter(pk__in=chosen, num_layers__isnull=False):
            moves.begin(model, now)
            if model.rebalancing == Rebalancing.OFF:
                _withdraw(model, ())
                self._looked_at.pop(model.pk, None)
            elif not machines.under_way(model).exists():
                self._propose(model, now)

    def _propose(self, model: LanguageModel, now: datetime) -> None:
        nodes = list(machines.settled(model, now))
        mesh = _rested(machines.mesh_of(model, nodes, now), model, now)
        outline, (before, at) = _outline(mesh), self._looked_at.get(model.pk, ([], now))
        if outline != before or now - at >= LOOKS_AGAIN:
            _write(model, nodes, propose(mesh), now)
            self._looked_at[model.pk] = outline, now
        if model.rebalancing == Rebalancing.AUTOMATIC and _is_settled(model, nodes, now):
            first = Move.objects.filter(model=model, state=Move.State.PROPOSED).order_by("created", "pk").first()
            if first and moves.accept(first, AUTOMATIC, now):
                moves.begin(model, now)


def _rested(mesh: Mesh, model: LanguageModel, now: datetime) -> Mesh:
    """Who has moved within the hour stays, unless some layer is held by nobody: speeds are measured amid other work,
    and what looks slow in one minute may be fast in the next."""
    if not mesh.is_whole():
        return mesh
    done = Move.objects.filter(model=model, state=Move.State.DONE, changed__gt=now - MOVES_AGAIN)
    moved = set(done.values_list("node__name", flat=True))
    placed = (replace(one, is_fixed=True) if one.key in moved else one for one in mesh.machines)
    return replace(mesh, machines=tuple(placed))


def _write(model: LanguageModel, nodes: Sequence[Node], proposals: Sequence[Proposal], now: datetime) -> None:
    """Rows for what is proposed now; those of what isn't any more go, nobody has decided on them."""
    by_name = {node.name: node for node in nodes}
    kept = _withdraw(model, [(by_name[one.key].pk, one.start_layer, one.end_layer) for one in proposals])
    for one in proposals:
        node = by_name[one.key]
        target = one.start_layer, one.end_layer
        if (node.pk, *target) in kept:
            continue
        if _was_refused(node, target, now):
            return  # the steps after it count on it
        _propose(model, node, one, now)


def _propose(model: LanguageModel, node: Node, proposal: Proposal, now: datetime) -> None:
    Move.objects.create(
        model=model,
        node=node,
        from_start=node.shard.start_layer,
        from_end=node.shard.end_layer,
        to_start=proposal.start_layer,
        to_end=proposal.end_layer,
        gain=round(proposal.gain, 3),
        reason=proposal.reason[:500],
        created=now,
        changed=now,
    )
    logger.info("proposed: node %s to layers %d–%d", node, proposal.start_layer, proposal.end_layer - 1)


def _withdraw(model: LanguageModel, proposed: Sequence[tuple[int, int, int]]) -> set[tuple[int, int, int]]:
    """Those that stay, as (node, start, end)."""
    rows = {(move.node_id, *move.target): move for move in Move.objects.filter(model=model, state=Move.State.PROPOSED)}
    gone = [move.pk for key, move in rows.items() if key not in proposed]
    if gone:
        Move.objects.filter(pk__in=gone, state=Move.State.PROPOSED).delete()
    return set(rows) & set(proposed)


def _was_refused(node: Node, target: tuple[int, int], now: datetime) -> bool:
    dropped = Move.objects.filter(node=node, state=Move.State.DROPPED, changed__gt=now - REFUSED_FOR)
    return dropped.filter(to_start=target[0], to_end=target[1]).exists()


def _is_settled(model: LanguageModel, nodes: Sequence[Node], now: datetime) -> bool:
    """Nothing has come, gone or moved lately, but for those who said that they leave: they don't come back."""
    since = now - timedelta(seconds=settings.REBALANCE_SETTLE_S)
    if Move.objects.filter(model=model, state=Move.State.DONE, changed__gt=since).exists():
        return False
    return all(node.state == "serving" and node.lease_until and node.lease_until > now for node in nodes)


def _outline(mesh: Mesh) -> list[Outline]:
    """What of a mesh a second look is worth at once: who is there, and with which layers."""
    return [(machine.key, machine.shard(), machine.is_fixed) for machine in mesh.holders()]
