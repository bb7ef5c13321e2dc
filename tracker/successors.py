"""The next head of a chat that has lost one: its route and rows, in the session's next epoch. Synchronous."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import DatabaseError

from relay.wire import Code
from tracker import epochs, orders, reports
from tracker.chats import Chat, RouteHead
from tracker.epochs import Hops
from tracker.errors import ApiError
from tracker.models import ChatSession, Failover, SessionHop

logger = logging.getLogger(__name__)

MAX_RACES = 3  # with heads that ask for the next epoch, too


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a head was left, and which others have failed in the chat."""

    code: str
    cause: str
    heads: Collection[str]  # peer ids, this one's among them
    resting: Collection[str]  # of these, which mayn't be asked again yet


class NoSuccessor(Exception):
    """Nobody goes on with the chat. `may_come`: a node that would may be there in a moment."""

    def __init__(self, message: str, *, may_come: bool = False) -> None:
        super().__init__(message)
        self.may_come = may_come


def next_chat(chat: Chat, lost: Lost, left_s: float, now: datetime) -> Chat:
    """The chat at another head, or where there is none at one that is back. Raises NoSuccessor."""
    try:
        return _next_chat(chat, lost, left_s, now)
    except DatabaseError as error:  # it may be back sooner than the chat gives up
        logger.warning("session %s: the database can't be used: %s", chat.short_id, error)
        raise NoSuccessor("the site's database can't be used now", may_come=True) from None


def _next_chat(chat: Chat, lost: Lost, left_s: float, now: datetime) -> Chat:
    session = ChatSession.objects.select_related("model").filter(pk=chat.session_pk).first()
    if session is None:
        raise NoSuccessor("its record was deleted")
    try:
        hops = _route_of(session, lost, len(chat.answer.prompt_ids), now)
        body = orders.continued(chat.request.body, chat.answer)
        _take_next_epoch(session, chat, lost, hops, now)
        request = orders.request_of(session, hops, chat.request.path, body, left_s, now)
    except ApiError as error:
        raise NoSuccessor(error.message, may_come=error.code == "no_route") from None
    chat.answer.node_names.update({node.peer_id: node.name for node, _ in hops})
    call = orders.call_of(hops[0][0])
    return replace(chat, epoch=session.epoch, head=RouteHead.of(hops), request=request, call=call)


def _route_of(session: ChatSession, lost: Lost, num_prompt: int, now: datetime) -> Hops:
    """Raises ApiError 503."""
    route = {hop.node.peer_id for hop in session.route() if hop.node}
    need_tokens = num_prompt + session.max_tokens
    try:
        return epochs.route_of(session.model, now, lost.heads, need_tokens, route)
    except ApiError:
        if len(lost.heads) == len(lost.resting):
            raise
    return epochs.route_of(session.model, now, lost.resting, need_tokens, route)


def _take_next_epoch(session: ChatSession, chat: Chat, lost: Lost, hops: Hops, now: datetime) -> None:
    """Writes its rows. Raises NoSuccessor."""
    if chat.answer.report:  # what a head had done before it failed
        reports.write(session.pk, chat.answer)
        chat.answer.report = None
    for _ in range(MAX_RACES):
        if epochs.take_next(session, hops, _failover_of(session, session.route().first(), chat, lost, now)):
            return
        session.refresh_from_db()
        if session.state != ChatSession.State.RUNNING:
            raise NoSuccessor("it has ended meanwhile")
    raise NoSuccessor("its head and this site each went on without the other")


def _failover_of(session: ChatSession, head: SessionHop | None, chat: Chat, lost: Lost, now: datetime) -> Failover:
    position = len(chat.answer.prompt_ids) + len(chat.answer.ids) if chat.answer.ids else None
    return Failover(
        session=session,
        kind=Failover.Kind.MOVE if lost.code == Code.DRAINING else Failover.Kind.HEAD,
        node=head.node if head else None,
        node_name=chat.head.name,
        start_layer=head.start_layer if head else 0,
        end_layer=head.end_layer if head else 0,
        code=lost.code[:60],
        cause=lost.cause[:500],
        position=position,
        at=now,
        kept=Failover.Kept.TOKENS if position else "",
        replayed_tokens=position,
    )
