"""Another route for a running session, asked for by its head: which hop is replaced by what, and who may ask.

A session keeps its head here; one that has lost its head is resumed by the site (failover.py). What still works stays
on the route, so that as few caches as possible have to be filled again.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from tracker import epochs
from tracker.breaker import SUSPICIONS
from tracker.candidates import candidates_of
from tracker.detours import detour
from tracker.epochs import Hops
from tracker.errors import ApiError
from tracker.models import ChatSession, Failover, Node, SessionHop
from tracker.node_schemas import Reroute
from tracker.routing import NoRoute, RouteElement
from tracker.words import presentable, with_names

logger = logging.getLogger(__name__)

MAX_A_MINUTE = 3  # of one session: more often than that no mesh loses nodes, and each costs a replay
MINUTE = timedelta(minutes=1)

_without_route: deque[tuple[str, int]] = deque(maxlen=1000)  # sessions and epochs that the log has told of last


class NoDetour(ApiError):
    """Nobody else has the layers of a node that its head says has `failed`; None where that is no fault of its."""

    def __init__(self, why: ApiError, failed: Node | None) -> None:
        super().__init__(why.status, why.message, code=why.code, headers=why.headers)
        self.failed = failed


def reroute(head: Node, session_id: str, wanted: Reroute, now: datetime) -> tuple[Failover, dict[str, Any]]:
    """Takes the session to its next epoch; what was written, and what the head is told. Raises ApiError."""
    session = _session_of(head, session_id, wanted.epoch, now)
    if session.epoch != wanted.epoch:
        return _again(session, head, wanted.epoch, now)
    _check_rate(session, now)
    route = list(session.route())
    left = _to_leave(route, now) if wanted.lost.code == Failover.Kind.MOVE else [_lost_hop(route, wanted)]
    hops = _next_route(session, route, left, wanted, now)
    failover = _failover_of(session, left[0], head, wanted, _cause(route, wanted), now)
    with transaction.atomic():
        if not epochs.take_next(session, hops, failover):
            raise _stale(session)
        answer = _answer(session, hops, now)
    by = ", ".join(node.name for node, element in hops if element not in _elements(route))
    logger.log(
        logging.INFO if failover.kind == Failover.Kind.MOVE else logging.WARNING,
        "session %s goes on in epoch %d without node %s: %s; instead: %s",
        *(session.short_id, session.epoch, failover, failover.cause, by or "nobody"),
    )
    return failover, answer


def _session_of(head: Node, session_id: str, epoch: int, now: datetime) -> ChatSession:
    """The running session that this node heads or has headed in this epoch. Raises ApiError 403, 404."""
    session = ChatSession.objects.select_related("model").filter(session_id=session_id).first()
    if session is None or session.state != ChatSession.State.RUNNING or session.deadline <= now:
        raise ApiError(404, "no such session runs here; it may have ended", code="not_found")
    if not session.hops.filter(epoch=epoch, position=0, node=head).exists():
        raise ApiError(403, f"node {head.name} isn't the head of this session in epoch {epoch}", code="forbidden")
    return session


def _again(session: ChatSession, head: Node, epoch: int, now: datetime) -> tuple[Failover, dict[str, Any]]:
    """The route that this head was given before, where the answer may have been lost. Raises ApiError 409."""
    given = session.failovers.filter(epoch=session.epoch, reported_by=head).select_related("node").first()
    rows = list(session.route().select_related("node__model"))
    hops = [(row.node, RouteElement(row.node.peer_id, row.start_layer, row.end_layer)) for row in rows if row.node]
    if given is None or epoch + 1 != session.epoch or len(hops) < len(rows):
        raise _stale(session)
    return given, _answer(session, hops, now)


def _answer(session: ChatSession, hops: Hops, now: datetime) -> dict[str, Any]:
    downstream = [epochs.hop_of(node, element, now).as_dict() for node, element in hops[1:]]
    ticket = epochs.ticket_for(session, hops)
    return {"epoch": session.epoch, "ticket": ticket, "route": downstream, "now": now.timestamp()}


def _stale(session: ChatSession) -> ApiError:
    message = f"session {session.short_id} has gone on to another epoch: leave it to its new head"
    return ApiError(409, message, code="stale")


def _check_rate(session: ChatSession, now: datetime) -> None:
    """Only routes that were given count: a head that waits for one asks again and again. Raises ApiError 429."""
    given = session.failovers.filter(reported_by__isnull=False, at__gt=now - MINUTE).order_by("-at")
    times = list(given.values_list("at", flat=True)[:MAX_A_MINUTE])
    if len(times) == MAX_A_MINUTE:
        wait_s = max(1, math.ceil((times[-1] + MINUTE - now).total_seconds()))
        message = f"session {session.short_id} had {MAX_A_MINUTE} new routes within a minute; ask again in {wait_s} s"
        raise ApiError(429, message, code="rate_limited", headers={"Retry-After": str(wait_s)})


def _lost_hop(route: list[SessionHop], wanted: Reroute) -> SessionHop:
    lost = RouteElement(wanted.lost.peer_id, wanted.lost.start_layer, wanted.lost.end_layer)
    for hop, element in zip(route[1:], _elements(route)[1:], strict=True):
        if element == lost:
            return hop
    layers = f"{lost.start_layer}:{lost.end_layer}"
    raise ApiError(400, f"lost: no hop after the head has layers {layers} on this peer", code="bad_request")


def _to_leave(route: list[SessionHop], now: datetime) -> list[SessionHop]:
    """The hops to leave, of a head that was asked to move its session and not told from whom. Raises ApiError 503."""
    left = [hop for hop in route[1:] if hop.node and hop.node.is_left(now)]
    if not left:
        raise ApiError(503, "no node after the head is being drained: go on as before", code="no_route")
    return left


def _next_route(
    session: ChatSession, route: list[SessionHop], left: list[SessionHop], wanted: Reroute, now: datetime
) -> Hops:
    """Nodes that failed this session before are asked again only where nobody else has their layers. Raises NoDetour
    naming the layers that nobody else holds."""
    elements, leaves = _elements(route), {hop.node.peer_id for hop in left if hop.node}
    found = candidates_of(session.model, now, {element.peer_id for element in elements} - leaves)
    head = route[0].node
    assert head is not None  # it is the one that asks
    found.nodes.setdefault(head.peer_id, head)  # it asks: so it is there, whatever its socket to the relay says
    failed = set(wanted.failed) - {element.peer_id for element in elements}
    head_end, need_tokens = head.shard.end_layer, (wanted.position or 0) + session.max_tokens
    for without in (leaves | failed, leaves):
        try:
            others = found.but(without)
            hops = detour(elements, left[0].position, others, head_end, random.SystemRandom(), need_tokens)
            return epochs.hops_of(hops, found)
        except NoRoute as error:
            why = error
    names = " and ".join(hop.node_name for hop in left)
    refusal = epochs.no_route(f"the session can't do without node {names}", why, found)
    _tell_once(session, refusal)
    raise NoDetour(refusal, left[0].node if wanted.lost.code in SUSPICIONS else None)


def _tell_once(session: ChatSession, refusal: ApiError) -> None:
    """A head that waits for a route asks again and again: one line for all of it."""
    asked = session.session_id, session.epoch
    if asked not in _without_route:
        _without_route.append(asked)
        logger.warning(
            "session %s has no other route in epoch %d: %s", session.short_id, session.epoch, refusal.message
        )


def _cause(route: list[SessionHop], wanted: Reroute) -> str:
    """In the head's words, which name nodes by peer id."""
    names = {hop.node.peer_id: hop.node_name for hop in route if hop.node}
    return presentable(with_names(wanted.lost.cause, names))[:500]


def _failover_of(
    session: ChatSession, lost: SessionHop, head: Node, wanted: Reroute, cause: str, now: datetime
) -> Failover:
    is_move = wanted.lost.code == Failover.Kind.MOVE
    return Failover(
        session=session,
        kind=Failover.Kind.MOVE if is_move else Failover.Kind.HOP,
        node=lost.node,
        node_name=lost.node_name,
        start_layer=lost.start_layer,
        end_layer=lost.end_layer,
        reported_by=head,
        code=wanted.lost.code,
        cause=cause,
        position=wanted.position,
        at=now,
    )


def _elements(route: list[SessionHop]) -> list[RouteElement]:
    """A node that was deleted has no peer id any more, and is nobody's candidate."""
    return [RouteElement(hop.node.peer_id if hop.node else "", hop.start_layer, hop.end_layer) for hop in route]
