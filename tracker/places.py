"""Which layers a node gets when it registers: those it names, or those that the site chooses.

A node that comes again keeps what it has, so that its files are of use and nothing swings to and fro; only a move that
was decided on changes that.
"""

from __future__ import annotations

import logging
from datetime import datetime

from tracker import machines, moves
from tracker.errors import ApiError
from tracker.models import Move, Node, Shard
from tracker.node_schemas import Registration
from tracker.placement import NoRoom, choose_shard

logger = logging.getLogger(__name__)


def give(node: Node, wanted: Registration, now: datetime, *, is_of_other_model: bool = False) -> None:
    """Writes the node's shard, in the transaction of its registration: the model's row is locked, so that those who
    register together see each other. Raises ApiError 409 where nothing fits."""
    before = Shard.objects.filter(node=node).first()
    if not wanted.picks_layers:
        moves.drop_open(node, "Its owner has named its layers since.", now)
        assert wanted.start_layer is not None
        assert wanted.end_layer is not None
        _write(node, before, (wanted.start_layer, wanted.end_layer), "")
        return
    num_layers = wanted.model.num_layers
    if is_of_other_model:
        moves.drop_open(node, "It came with another model.", now)
    elif failed := wanted.failed_move:
        before = _back(node, before, moves.fail(node, failed.move, failed.reason, now))
    elif move := moves.arrive(node, wanted.move, now):
        if _fits(node, move.target, num_layers):
            _write(node, before, move.target, move.reason)
            return
        moves.drop_open(node, "Its memory doesn't hold these layers any more.", now)
    if before is None or is_of_other_model or not _fits(node, before.loaded, num_layers):
        _choose(node, before, num_layers, now)


def _back(node: Node, before: Shard | None, move: Move | None) -> Shard | None:
    """To the layers that it had before a move that failed."""
    if move and before and before.loaded == move.target:
        _write(node, before, move.origin, f"It went back: {move.outcome}")
    return before


def _choose(node: Node, before: Shard | None, num_layers: int, now: datetime) -> None:
    node.model.num_layers = node.model.num_layers or num_layers  # of the first node, while nobody has fixed it
    try:
        choice = choose_shard(machines.mesh_for(node, now), machines.machine_of(node))
    except NoRoom as error:
        raise ApiError(409, f"the site finds no layers for node {node.name}: {error}", code="no_room") from None
    moves.drop_open(node, "Other layers were chosen for it when it registered.", now)
    _write(node, before, choice.layers, choice.reason)
    logger.info("node %s gets layers %d–%d: %s", node.name, choice.start_layer, choice.end_layer - 1, choice.reason)


def _fits(node: Node, layers: tuple[int, int], num_layers: int) -> bool:
    start, end = layers
    return start < end <= num_layers and machines.machine_of(node).fits(start, end, num_layers)


def _write(node: Node, before: Shard | None, layers: tuple[int, int], reason: str) -> None:
    if before and before.loaded != layers:
        node.endpoint_proved_until = None  # what listens there loads first; proofs.py asks it, and writes this
    shard = before or Shard(node=node)
    shard.start_layer, shard.end_layer = layers
    shard.loaded_start = shard.loaded_end = None
    shard.reason = reason[:500]
    shard.save()
    node.shard = shard  # what its row has in memory is that of before
