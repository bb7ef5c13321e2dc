"""The life of a move: accepted, begun when no layer is left alone by it, told to its node, done or dropped.

A node that is to load other layers gets no new sessions, and those that it has go on elsewhere; when none is left it
hears its new layers with a heartbeat, loads them and registers with them. One that has the layers in memory already is
only used for others. Every change of a state is one UPDATE that finds the former state.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from tracker.candidates import candidates_of
from tracker.machines import under_way
from tracker.models import ChatSession, LanguageModel, Move, Node, Shard
from tracker.routing import missing_layers

logger = logging.getLogger(__name__)

State = Move.State
BEGINS_WITHIN = timedelta(minutes=30)  # after it was accepted, or somebody looks again
COMES_BACK_WITHIN = timedelta(minutes=10)  # a node that loads is heard of meanwhile


def accept(move: Move, who: str, now: datetime) -> bool:
    """False where it is no longer proposed."""
    return _change(move, (State.PROPOSED,), now, state=State.ACCEPTED, decided_by=who[:150])


def drop(move: Move, who: str, outcome: str, now: datetime) -> bool:
    """False where it can't be stopped any more: its node loads already."""
    told = {"decided_by": who[:150]} if who else {}
    dropped = _change(move, (State.PROPOSED, State.ACCEPTED), now, state=State.DROPPED, outcome=outcome[:300], **told)
    if dropped:
        Node.objects.filter(pk=move.node_id).update(is_moving=False)
    return dropped


def drop_open(node: Node, outcome: str, now: datetime) -> None:
    """Whatever was decided for the node is void."""
    for move in Move.objects.filter(node=node, state__in=Move.OPEN):
        _end(move, State.DROPPED, outcome, now)
    node.is_moving = False


def begin(model: LanguageModel, now: datetime) -> None:
    """Of the moves that were accepted the first that may begin does, one at a time."""
    decided = list(under_way(model).select_related("node__shard", "node__model").order_by("created", "pk"))
    for move in decided:
        _expire(move, now)
    waiting = [move for move in decided if move.state == State.ACCEPTED]
    for move in waiting:
        if move.node.is_moving and not _may_leave(move.node, now):
            _mark(move.node, is_moving=False)  # another has gone meanwhile: it is needed where it is
    if any(move.state == State.LOADING or move.node.is_moving for move in decided):
        return
    for move in waiting:
        if _begin(move, now):
            return


def place_of(node: Node, now: datetime) -> dict[str, int] | None:
    """What the node hears with a heartbeat: the layers it is to load, once no session is left on it."""
    if not node.picks_layers:
        return None
    move = under_way(node.model).filter(node=node).first()
    if move is None:
        return None
    if move.state == State.LOADING and node.shard.loaded == move.target:
        if node.state == "serving":
            _end(move, State.DONE, "", now)
        return None
    if move.state == State.ACCEPTED:
        if not node.is_moving or not _is_drained(node, now):
            return None
        _change(move, (State.ACCEPTED,), now, state=State.LOADING)
        logger.info("node %s is to load %s", node.name, move)
    return {"start_layer": move.to_start, "end_layer": move.to_end, "move": move.pk}


def arrive(node: Node, number: int | None, now: datetime) -> Move | None:
    """The move that the node's registration carries out; it takes its target's layers now."""
    move = Move.objects.filter(node=node, state=State.LOADING).first()
    if move is None or (number is not None and number != move.pk):
        return None
    _mark(node, is_moving=False)
    _change(move, (State.LOADING,), now, state=State.LOADING)  # from now on it loads
    return move


def fail(node: Node, number: int, why: str, now: datetime) -> Move | None:
    """The node couldn't do it, and says why."""
    move = Move.objects.filter(node=node, pk=number).first()
    if move is not None:
        _end(move, State.DROPPED, f"The node couldn't: {why}", now)
    node.is_moving = False
    return move


def _begin(move: Move, now: datetime) -> bool:
    shard = move.node.shard
    start, end = shard.loaded
    if start <= move.to_start and move.to_end <= end:
        return _use_others(move, now)
    if not _may_leave(move.node, now):
        return False
    _mark(move.node, is_moving=True)
    logger.info("node %s drains: it is to move %s", move.node, move)
    return True


def _use_others(move: Move, now: datetime) -> bool:
    """Of the layers that the node has in memory, unless one were left alone by it."""
    shard = move.node.shard
    loaded_start, loaded_end = shard.loaded
    found = candidates_of(move.model, now)
    others = found.but({move.node.peer_id})
    after = [(one.start_layer, one.end_layer) for one in others] + [move.target]
    num_layers = move.model.num_layers or 0
    if not missing_layers(found.shards, num_layers) and _missing(after, num_layers):
        return False
    Shard.objects.filter(pk=shard.pk).update(
        start_layer=move.to_start,
        end_layer=move.to_end,
        loaded_start=loaded_start,
        loaded_end=loaded_end,
        reason=move.reason,
    )
    _end(move, State.DONE, "", now)
    return True


def _may_leave(node: Node, now: datetime) -> bool:
    """Every layer is held by others that take sessions; or there is nothing to lose, since some layer is held by
    nobody."""
    found, num_layers = candidates_of(node.model, now), node.model.num_layers or 0
    here = [(one.start_layer, one.end_layer) for one in found.shards]
    if node.is_moving:  # it isn't among those that take sessions any more
        here.append((node.shard.start_layer, node.shard.end_layer))
    others = [(one.start_layer, one.end_layer) for one in found.but({node.peer_id})]
    return not _missing(others, num_layers) or bool(_missing(here, num_layers))


def _missing(shards: list[tuple[int, int]], num_layers: int) -> bool:
    held = {layer for start, end in shards for layer in range(start, end)}
    return len(held) < num_layers


def _is_drained(node: Node, now: datetime) -> bool:
    """By its own word and by ours."""
    on_it = ChatSession.objects.running(now).filter(hops__node=node, hops__epoch=F("epoch"))
    return not node.sessions and not on_it.exists()


def _expire(move: Move, now: datetime) -> None:
    if move.state == State.ACCEPTED and move.changed < now - BEGINS_WITHIN:
        why = "its sessions didn't end" if move.node.is_moving else "its layers had nobody else all the while"
        _end(move, State.DROPPED, f"It couldn't begin within {BEGINS_WITHIN.seconds // 60} minutes: {why}.", now)
    if move.state == State.ACCEPTED and move.node.duty != Node.Duty.WORKS:
        _end(move, State.DROPPED, f"The operator has it {move.node.get_duty_display()}.", now)
    last_seen = move.node.last_seen
    if last_seen and max(last_seen, move.changed) < now - COMES_BACK_WITHIN:
        _end(move, State.DROPPED, "The node hasn't been heard of since.", now)


def _end(move: Move, state: str, outcome: str, now: datetime) -> None:
    if _change(move, Move.OPEN, now, state=state, outcome=outcome[:300]):
        logger.info("move of node %s: %s%s", move, state, f", {outcome}" if outcome else "")
    _mark(move.node, is_moving=False)


def _change(move: Move, states: tuple[str, ...], now: datetime, **fields: Any) -> bool:
    changed = Move.objects.filter(pk=move.pk, state__in=states).update(changed=now, **fields)
    if changed:
        for name, value in (fields | {"changed": now}).items():
            setattr(move, name, value)
    return changed == 1


def _mark(node: Node, *, is_moving: bool) -> None:
    Node.objects.filter(pk=node.pk).update(is_moving=is_moving)
    node.is_moving = is_moving
