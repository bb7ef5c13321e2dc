"""Who says that a node failed, and what follows: its breaker opens. The rules are in breaker.py."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from relay import presence
from tracker import figures
from tracker.breaker import ACCUSED_WITHIN, FAULTS, Breaker, State, is_accused_enough
from tracker.models import Failover, Node, SessionHop

logger = logging.getLogger(__name__)


def site_saw(peer_id: str, reason: str, now: datetime) -> bool:
    """The site itself saw it fail; whether its breaker opened. Of a node that is gone nothing is held: it is offline,
    and welcome when it is back."""
    node = Node.objects.filter(peer_id=peer_id).first()
    if node is None or not (presence.is_present(peer_id) or node.is_endpoint_proved(now)):
        return False
    return _open(node, reason, now)


def accused(failover: Failover, now: datetime) -> bool:
    """A head said so; whether the node's breaker opened: heads of other owners did so too, or it was on trial."""
    node = failover.node
    if node is None or failover.code not in FAULTS:
        return False
    accusers = dict(_accusers(node, now))
    if node.breaker.state(now) != State.HALF_OPEN and not is_accused_enough(accusers.values()):
        return False
    return _open(node, f"{_in_words(sorted(accusers))} couldn't go on with it: {failover.cause}", now)


def is_well(node: Node, now: datetime) -> None:
    """It answers. Where its time without sessions is over, it is used again."""
    if node.breaker.state(now) == State.HALF_OPEN and _write(node.pk, node.breaker, node.breaker.closed()):
        logger.info("node %s answers again: it gets sessions", node.name)


def carried(hops: Sequence[SessionHop], now: datetime) -> None:
    """A session has come to its end through the last of these routes: what its nodes failed at before is forgotten."""
    last_epoch = max((hop.epoch for hop in hops), default=0)
    carriers = [hop.node for hop in hops if hop.epoch == last_epoch and hop.node]
    failed = [node.pk for node in carriers if node.breaker_openings or node.breaker_until]
    accused = _lately(now).filter(node__in=carriers)  # seldom any: what says who still is takes longer to ask
    if failed or accused.exists():
        is_accused = Exists(_accusations(now).filter(node=OuterRef("pk")))
        carried_it = Node.objects.filter(pk__in=[node.pk for node in carriers])
        forgive(carried_it.filter(Q(pk__in=failed) | is_accused), now)


def forgive(nodes: QuerySet[Node], now: datetime) -> None:
    """They are used again, and what was said of them until now counts no more."""
    nodes.update(breaker_until=None, breaker_openings=0, breaker_reason="", cleared=now)


def _accusers(node: Node, now: datetime) -> Iterable[tuple[str, int | None]]:
    """The nodes that said lately that it failed, each with its owner's join token."""
    return _accusations(now).filter(node=node).values_list("reported_by__name", "reported_by__joined_with")


def _accusations(now: datetime) -> QuerySet[Failover]:
    """Those of heads, of the last minutes, but for what was said of a node before it was put right."""
    return _lately(now).filter(Q(node__cleared__isnull=True) | Q(at__gt=F("node__cleared")))


def _lately(now: datetime) -> QuerySet[Failover]:
    return Failover.objects.filter(code__in=FAULTS, at__gt=now - ACCUSED_WITHIN).exclude(reported_by=None)


def _in_words(names: Sequence[str]) -> str:
    return f"node {names[0]}" if len(names) == 1 else f"nodes {', '.join(names[:-1])} and {names[-1]}"


def _open(node: Node, reason: str, now: datetime) -> bool:
    opened = node.breaker.opened(now, reason[:300])
    if not _write(node.pk, node.breaker, opened):
        return False
    figures.breaker_openings.inc()
    left_out = opened.until and f"{opened.until:%H:%M:%S}"
    logger.warning("node %s is left out until %s UTC: %s", node.name, left_out, opened.reason)
    return True


def _write(node_pk: int, before: Breaker, after: Breaker) -> bool:
    """False where nothing changes, or another process was faster."""
    if after == before:
        return False
    as_read = Node.objects.filter(pk=node_pk, breaker_until=before.until, breaker_openings=before.openings)
    changed = {"breaker_until": after.until, "breaker_openings": after.openings, "breaker_reason": after.reason}
    return as_read.update(**changed) == 1
