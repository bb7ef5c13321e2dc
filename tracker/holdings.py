"""What a node hears of the sessions it holds: which are over there, and which should leave it or another that drains.

A release that got lost on its way would otherwise keep its room until the cache expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db.models import Exists, F, OuterRef, Q

from tracker import epochs
from tracker.models import ChatSession, Node, SessionHop

Epochs = dict[str, int]  # by session id


def closed(node: Node, held: Mapping[str, int]) -> Epochs:
    """Of the sessions that the node holds, with their epochs, those that are over there, and up to which epoch.

    Over: it has ended, was never here, or its route goes another way by now. A session that nobody gives news of any
    more is ended by the tick first: after a database that was away, all of them look so for a moment."""
    told = dict(held)
    for session_id, state, epoch, has_route, is_on_it in _sessions(node, held):
        goes_on = state == ChatSession.State.RUNNING
        if goes_on and (is_on_it or not has_route or held[session_id] > epoch):
            del told[session_id]
        else:
            told[session_id] = max(epoch, held[session_id])
    return told


def moving(node: Node, held: Mapping[str, int], now: datetime) -> list[str]:
    """Sessions that the node is the head of and that go through one that drains, is about to take other layers, or is
    banned, while there is another way."""
    left = Node.objects.filter(_is_left(now), model=node.model_id)
    if not held or node.is_draining or not left.exists():
        return []
    heads = SessionHop.objects.filter(node=node, position=0, epoch=F("session__epoch"), session__session_id__in=held)
    through = SessionHop.objects.filter(
        _is_left(now, "node__"), session=OuterRef("session"), epoch=OuterRef("epoch"), position__gt=0
    )
    running = heads.filter(Exists(through), session__state=ChatSession.State.RUNNING)
    session_ids = list(running.values_list("session__session_id", flat=True))
    return session_ids if session_ids and _has_another_way(node, now) else []


def duty(node: Node, now: datetime) -> str:
    """What the node is told to do: to send away those it is the head of only while others could go on with them."""
    if not node.is_draining:
        return node.duty
    return Node.Duty.DRAINING if _has_another_way(node, now) else Node.Duty.PAUSED


def _is_left(now: datetime, of: str = "") -> Q:
    """As Node.is_left; `of`: how the nodes are called in the query."""
    drains = Q(**{f"{of}duty": Node.Duty.DRAINING}) | Q(**{f"{of}is_moving": True})
    return drains | Q(**{f"{of}banned_until__gt": now})


def _has_another_way(node: Node, now: datetime) -> bool:
    """No route that is found goes through nodes that drain."""
    return epochs.route_problem(node.model, now) is None


def _sessions(node: Node, held: Mapping[str, int]) -> Iterable[tuple[str, str, int, bool, bool]]:
    """(session id, state, epoch, whether it has a route in this epoch, whether the node is on it)"""
    route = SessionHop.objects.filter(session=OuterRef("pk"), epoch=OuterRef("epoch"))
    rows = ChatSession.objects.filter(session_id__in=held).annotate(
        has_route=Exists(route), is_on_it=Exists(route.filter(node=node))
    )
    return rows.values_list("session_id", "state", "epoch", "has_route", "is_on_it") if held else ()
