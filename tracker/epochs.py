"""A session's route in one epoch: which nodes may be on it, its rows, its ticket.

A session begins with epoch 0. When a node on its route is lost, whoever notices asks for the next epoch: `raise_epoch`
is the race, which one wins.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from relay import headers
from tracker import figures, tickets
from tracker.candidates import Candidates, candidates_of
from tracker.errors import ApiError
from tracker.models import ChatSession, Failover, LanguageModel, Node, SessionHop
from tracker.routing import NoRoute, RouteElement, find_route, taken

TICKET_MARGIN = timedelta(seconds=60)  # beyond the deadline, in which hops are still freed under the ticket

Hops = list[tuple[Node, RouteElement]]


def route_of(
    model: LanguageModel,
    now: datetime,
    without: Collection[str] = (),
    need_tokens: int = 0,
    route: Collection[str] = (),
) -> Hops:
    """The nodes to go through and the layers of each, `without` those of these peer ids, for a session of so many
    tokens that has gone through `route` so far. Raises ApiError 503 naming the layers that are missing."""
    return routes_of(model, now, 1, without, need_tokens, route)[0]


def routes_of(
    model: LanguageModel,
    now: datetime,
    num_routes: int,
    without: Collection[str] = (),
    need_tokens: int = 0,
    route: Collection[str] = (),
) -> list[Hops]:
    """As route_of, of sessions that begin together: each is a load where the next one looks."""
    if not model.num_layers:
        raise ApiError(503, f"No node has joined for {model.name} yet.", code="no_route")
    found = candidates_of(model, now, route)
    shards, routes = found.but(without), []
    for _ in range(num_routes):
        try:
            elements = find_route(shards, model.num_layers, random.SystemRandom(), need_tokens)
        except NoRoute as error:
            raise no_route(f"{model.name} can't answer now", error, found) from None
        routes.append(hops_of(elements, found))
        shards = taken(shards, elements, need_tokens)
    return routes


def no_route(what: str, why: NoRoute, found: Candidates) -> ApiError:
    """Names the nodes that are online and left out, too: an operator sees what would help."""
    left_out = f" ({'; '.join(found.left_out)})" if found.left_out else ""
    return ApiError(503, f"{what}: {why.in_words(found.closed)}{left_out}.", code="no_route")


def hops_of(route: Iterable[RouteElement], found: Candidates) -> Hops:
    return [(found.nodes[element.peer_id], element) for element in route]


def route_problem(model: LanguageModel, now: datetime) -> str | None:
    """Why the model can't answer now, in words; None when it can."""
    try:
        route_of(model, now)
    except ApiError as error:
        return error.message
    return None


def raise_epoch(session: ChatSession) -> bool:
    """Takes the session to its next epoch; False when another was faster, or it has ended."""
    here = ChatSession.objects.filter(pk=session.pk, epoch=session.epoch, state=ChatSession.State.RUNNING)
    if not here.update(epoch=F("epoch") + 1):
        return False
    session.epoch += 1
    return True


def take_next(session: ChatSession, hops: Hops, failover: Failover) -> bool:
    """Takes the session to its next epoch with this route, and writes what led to it; False as `raise_epoch`."""
    with transaction.atomic():
        if not raise_epoch(session):
            return False
        write_hops(session, hops)
        failover.epoch = session.epoch
        failover.save()
    figures.failovers.labels(failover.kind).inc()
    return True


def write_hops(session: ChatSession, hops: Hops) -> None:
    """The rows of the session's route in its epoch."""
    SessionHop.objects.bulk_create(hop_rows(session, hops))


def hop_rows(session: ChatSession, hops: Hops) -> list[SessionHop]:
    return [
        SessionHop(
            session=session,
            epoch=session.epoch,
            position=position,
            node=node,
            node_name=node.name,
            start_layer=element.start_layer,
            end_layer=element.end_layer,
        )
        for position, (node, element) in enumerate(hops)
    ]


def ticket_for(session: ChatSession, hops: Hops) -> str:
    """What allows the session this route in its epoch. Raises ApiError 500 where the site has no key."""
    return tickets.sign(
        _signing_key(),
        session=session.session_id,
        epoch=session.epoch,
        fingerprint=session.model.fingerprint,
        hops=[(node.peer_id, element.start_layer, element.end_layer) for node, element in hops],
        dtype=session.model.wire_dtype,
        max_tokens=session.max_tokens,
        seed=session.seed,
        expires=int((session.deadline + TICKET_MARGIN).timestamp()),
    )


def hop_of(node: Node, element: RouteElement, now: datetime) -> headers.Hop:
    """As the head sees it: the endpoint only while it is proved, by the address that was checked."""
    endpoint = node.dial_url if node.is_endpoint_proved(now) else None
    wire_versions = tuple(node.wire_versions) or (1,)  # a node of an earlier site has said nothing yet
    layers = element.start_layer, element.end_layer
    return headers.Hop(node.peer_id, *layers, endpoint, node.relay_addr, wire_versions)


def _signing_key() -> tickets.SigningKey:
    keys = tickets.signing_keys()
    if not keys:
        raise ApiError(500, "This site has no key to sign tickets with: run manage.py migrate, or set TICKET_KEYS.")
    return keys[0]
