"""Which nodes a list shows: by state, by model, by text. Decided by the database, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from django.db.models import Count, F, Q, QuerySet

from tracker.dashboard.pages import Ask
from tracker.errors import writable
from tracker.models import Node

MAX_TEXT = 100  # characters that are searched for
SEARCHED = ("name", "device", "version", "model__name", "joined_with__label", "address", "endpoint", "peer_id")
Which = Callable[[datetime, Collection[str]], Q]  # now, peer ids that are on the relay


def _online(now: datetime, present: Collection[str]) -> Q:
    return Q(pk__in=Node.objects.online(now, present).values("pk"))


def _offline(now: datetime, present: Collection[str]) -> Q:
    return Q(status=Node.Status.APPROVED) & _not_banned(now) & ~_online(now, present)


def _closed(now: datetime, present: Collection[str]) -> Q:
    return _online(now, present) & (~Q(duty=Node.Duty.WORKS) | Q(is_moving=True) | Q(breaker_until__gt=now))


def _loading(now: datetime, present: Collection[str]) -> Q:
    return _offline(now, present) & Q(state="loading", lease_until__gt=now)


def _pending(now: datetime, present: Collection[str]) -> Q:
    return Q(status=Node.Status.PENDING) & _not_banned(now)


def _banned(now: datetime, present: Collection[str]) -> Q:
    return Q(banned_until__gt=now) & ~Q(status=Node.Status.REVOKED)


def _revoked(now: datetime, present: Collection[str]) -> Q:
    return Q(status=Node.Status.REVOKED)


def _not_banned(now: datetime) -> Q:
    return Q(banned_until=None) | Q(banned_until__lte=now)


STATES: dict[str, tuple[str, Which]] = {
    "online": ("online", _online),
    "closed": ("takes no new sessions", _closed),
    "offline": ("offline", _offline),
    "loading": ("loading", _loading),
    "pending": ("waits for approval", _pending),
    "banned": ("banned", _banned),
    "revoked": ("revoked", _revoked),
}
ORDERS = {
    "name": ("by name", ("name",)),
    "layers": ("by model and layers", ("model__name", "shard__start_layer", "name")),
    "slow": ("the slowest first", (F("ms_per_layer").desc(nulls_last=True), "name")),
    "new": ("the newest first", ("-created", "name")),
}


def filtered(ask: Ask, present: Collection[str]) -> QuerySet[Node]:
    """What the query asks for; values that aren't ours filter nothing."""
    nodes: QuerySet[Node] = Node.objects.all()
    if ask.param("state") in STATES:
        _, which = STATES[ask.param("state")]
        nodes = nodes.filter(which(ask.now, present))
    if ask.param("model"):
        nodes = nodes.filter(model__name=writable(ask.param("model")))
    for word in writable(ask.param("q"))[:MAX_TEXT].split():
        nodes = nodes.filter(_somewhere(word))
    _, order = ORDERS.get(ask.param("order"), ORDERS["name"])
    return nodes.order_by(*order)


def is_filtered(ask: Ask) -> bool:
    return any(ask.param(name) for name in ("state", "model", "q"))


def counts(now: datetime, present: Collection[str]) -> dict[str, int]:
    """How many nodes there are of each state, and under "all". One query."""
    of_each = {state: Count("pk", filter=which(now, present)) for state, (_, which) in STATES.items()}
    told: dict[str, int] = Node.objects.aggregate(all=Count("pk"), **of_each)
    return told


def _somewhere(word: str) -> Q:
    found = Q()
    for field in SEARCHED:
        found |= Q(**{f"{field}__icontains": word})
    return found
