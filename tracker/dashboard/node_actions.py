"""What operators do with a node from its page: which actions are offered there, and the POSTs that carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet
from django.http import Http404, HttpRequest

from tracker import bans, operating
from tracker.dashboard.actions import Done, Refused, action
from tracker.groups import OPERATE
from tracker.models import Node


@dataclass(frozen=True, slots=True)
class Offer:
    name: str  # in operating.ACTIONS
    label: str
    kind: str = ""  # of the button: first, danger
    asks: str = ""  # before it is done


APPROVE = Offer("approve", "Approve", "first")
PAUSE, DRAIN, RESUME = Offer("pause", "Pause"), Offer("drain", "Drain"), Offer("resume", "Resume", "first")
USE_AGAIN, LIFT_BAN = Offer("use_again", "Use again", "first"), Offer("lift_ban", "Lift the ban", "first")
ROTATE_KEY = Offer("rotate_key", "Give it a new key")
REVOKE = Offer("revoke", "Revoke its key", "danger", "Revoke its key? It can come back only with a join token.")

LABELS = {offer.name: offer.label for offer in (APPROVE, PAUSE, DRAIN, RESUME, USE_AGAIN, LIFT_BAN, ROTATE_KEY, REVOKE)}
DUTIES = {
    Node.Duty.WORKS: (PAUSE, DRAIN),
    Node.Duty.PAUSED: (RESUME, DRAIN),
    Node.Duty.DRAINING: (RESUME, PAUSE),
}


def offered(node: Node, now: datetime) -> tuple[list[Offer], list[Offer]]:
    """What is near at hand, and what is seldom wanted; nothing that would be refused."""
    if node.status == Node.Status.REVOKED:
        return [], []
    seldom = [REVOKE] if node.rotates_key else [ROTATE_KEY, REVOKE]
    if node.ban(now):
        return [LIFT_BAN], seldom
    if node.status == Node.Status.PENDING:
        return [APPROVE], seldom
    near = list(DUTIES[Node.Duty(node.duty)])
    if node.breaker_until or node.breaker_openings:
        near.append(USE_AGAIN)
    return near, seldom


def _asks(pk: int, name: str) -> str:
    if name not in LABELS:
        raise Http404("There is no such action.")
    return f"{LABELS[name]}: {_nodes(pk)[0].name}?"


@action(OPERATE, asks=_asks)
def act(request: HttpRequest, why: str, pk: int, name: str) -> Done:
    if name not in operating.ACTIONS:
        raise Http404("There is no such action.")
    return _told(operating.ACTIONS[name](request, _nodes(pk), why))


@action(OPERATE, asks=lambda pk: f"Ban {_nodes(pk)[0].name}? It is disconnected at once.")
def ban(request: HttpRequest, why: str, pk: int) -> Done:
    lasts = request.POST.get("lasts", "")
    if lasts not in bans.PERIODS:
        raise Refused(f"Say how long it lasts: {', '.join(words for words, _ in bans.PERIODS.values())}.")
    return _told(operating.ban(request, _nodes(pk), why, bans.PERIODS[lasts][1]))


def _nodes(pk: int) -> QuerySet[Node]:
    found = Node.objects.filter(pk=pk)
    if not found:
        raise Http404("There is no such node here (any more).")
    return found


def _told(done: operating.Done) -> Done:
    """It is written down already."""
    if not done.names:
        raise Refused(" ".join(done.refused))
    return Done(str(done))
