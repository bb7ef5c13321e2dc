"""A chat's beginning and end in the database: its route, its ticket, its row. Synchronous; the stream is proxy.py's.

Nothing here runs between the first byte of an answer and the last.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from relay import headers, presence, wire
from tracker import accusations, epochs, news
from tracker.answers import Answer, Form
from tracker.epochs import Hops
from tracker.errors import ApiError
from tracker.heads import HeadCall, by_http, through_relay
from tracker.models import ApiKey, ChatSession, LanguageModel, Node, SessionHop
from tracker.openai import ChatRequest, CompletionRequest

DEFAULT_MAX_TOKENS = 1024  # of a chat that names no number
BYTES_PER_TOKEN = 4  # of a prompt, about: only its head knows how many tokens it has
PATHS = frozenset(SessionHop.Path.values)


@dataclass(frozen=True, slots=True)
class Chat:
    """All that the proxy needs: whom to ask what, until when, and the answer to fill."""

    session_pk: int
    short_id: str  # as logs show the session
    request: wire.Request
    call: HeadCall
    answer: Answer
    deadline_s: float
    started: datetime


@dataclass(slots=True)
class Outcome:
    """How a chat ended. Whoever ends it says so; what ends in no such way is a fault of ours."""

    state: str = ChatSession.State.FAILED
    ttft_ms: float | None = None
    error_code: str = "internal"
    error_message: str = ""


def begin(asked: ChatRequest | CompletionRequest, form: Form, api_key: ApiKey | None, now: datetime) -> Chat:
    """Finds the route, signs the ticket, writes the rows. Raises ApiError."""
    model = find_model(asked.model)
    deadline_s = _deadline_s(asked.wanted_deadline_s)
    seed = secrets.randbits(63) if asked.seed is None else asked.seed
    limit = min(asked.wanted_tokens or DEFAULT_MAX_TOKENS, model.context_length or DEFAULT_MAX_TOKENS)
    body = _head_body(asked, limit, seed)
    hops = epochs.route_of(model, now, need_tokens=limit + len(body) // BYTES_PER_TOKEN)
    session = _new_session(asked, form, model, api_key, now)
    session.seed, session.max_tokens, session.deadline = seed, limit, now + timedelta(seconds=deadline_s)
    ticket = epochs.ticket_for(session, hops)
    with transaction.atomic():
        session.save()
        epochs.write_hops(session, hops)
    news.begin(session.pk)
    head = hops[0][0]
    request = wire.Request(
        request_id=secrets.token_hex(16),
        method="POST",
        path=form.path,
        headers=_head_headers(session, ticket, hops[1:], deadline_s),
        body=body,
        sender=wire.TRACKER,
        deadline_ms=int(deadline_s * 1000),
    )
    answer = Answer(
        form=form,
        completion_id=session.completion_id,
        created=int(now.timestamp()),
        model=model.name,
        includes_usage=asked.includes_usage,
        has_trace=asked.wants_trace,
        has_logprobs=asked.wanted_logprobs is not None,
        node_names={node.peer_id: node.name for node, _ in hops},
    )
    return Chat(session.pk, session.short_id, request, _call_of(head), answer, deadline_s, now)


def finish(chat: Chat, outcome: Outcome, now: datetime) -> None:
    """Writes how it ended."""
    news.end(chat.session_pk)
    answer = chat.answer
    ChatSession.objects.filter(pk=chat.session_pk).update(
        state=outcome.state,
        ended=now,
        finish_reason=answer.finish_reason or "",
        prompt_tokens=answer.prompt_tokens if answer.report or answer.prompt_ids else None,
        completion_tokens=answer.completion_tokens,
        drafted_tokens=sum(hop.drafted for hop in answer.report.hops) if answer.report else None,
        accepted_tokens=sum(hop.accepted for hop in answer.report.hops) if answer.report else None,
        ttft_ms=outcome.ttft_ms,
        error_code=outcome.error_code[:60] if outcome.state == ChatSession.State.FAILED else "",
        error_message=outcome.error_message[:2000],
    )
    if outcome.state == ChatSession.State.DONE:
        accusations.carried(chat.session_pk)
    for hop in answer.report.hops if answer.report else ():
        mine = SessionHop.objects.filter(
            session=chat.session_pk, node__peer_id=hop.peer_id, start_layer=hop.start_layer, end_layer=hop.end_layer
        )
        mine.update(
            path=hop.path if hop.path in PATHS else "",
            steps=hop.steps,
            ms_total=hop.ms_total,
            compute_ms=hop.compute_ms,
            queue_ms=hop.queue_ms,
        )


def find_model(name: str) -> LanguageModel:
    """Raises ApiError 404."""
    model = None if "\0" in name else LanguageModel.objects.filter(name=name).first()  # PostgreSQL refuses NUL
    if model is None:
        message = f"The model '{name[:100]}' does not exist here. GET /v1/models lists those that do."
        raise ApiError(404, message, code="model_not_found", param="model")
    return model


def _deadline_s(wanted: float | None) -> float:
    """Raises ApiError 400 where more is asked for than the operator gives."""
    longest = min(float(settings.REQUEST_DEADLINE_S), wire.MAX_DEADLINE_S)
    if wanted is not None and wanted > longest:
        param, most = "meshnet.deadline_s", f"at most {longest:g} seconds are given here"
        raise ApiError(400, f"{param}: is {wanted:g}; {most}.", code="invalid_value", param=param)
    return longest if wanted is None else wanted


def _call_of(head: Node) -> HeadCall:
    is_connected = head.uses_relay and presence.is_present(head.peer_id)
    return through_relay(head.peer_id) if is_connected else by_http(head.dial_url)


def _head_body(asked: ChatRequest | CompletionRequest, limit: int, seed: int) -> bytes:
    fields: dict[str, Any] = asked.for_head() | {"seed": seed}
    fields["max_tokens"] = None if asked.wanted_tokens is None else limit
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    if len(body) > wire.MAX_BODY_BYTES:
        param = "messages" if isinstance(asked, ChatRequest) else "prompt"
        message = f"{param}: {len(body)} bytes on the way to the model; the limit is {wire.MAX_BODY_BYTES}."
        raise ApiError(400, message, code="string_above_max_length", param=param)
    return body


def _head_headers(session: ChatSession, ticket: str, downstream: Hops, deadline_s: float) -> dict[str, str]:
    """Written afresh: of the client's headers none crosses."""
    route = [epochs.hop_of(node, element, session.started) for node, element in downstream]
    return {
        "content-type": "application/json",
        headers.SESSION: session.session_id,
        headers.EPOCH: str(session.epoch),
        headers.TICKET: ticket,
        headers.ROUTE: headers.encode_route(route),
        headers.PREFILL_CHUNK: str(session.model.fitting_chunk_tokens),
        headers.DEADLINE_MS: str(int(deadline_s * 1000)),
    }


def _new_session(
    asked: ChatRequest | CompletionRequest, form: Form, model: LanguageModel, api_key: ApiKey | None, now: datetime
) -> ChatSession:
    return ChatSession(
        session_id=secrets.token_hex(16),
        completion_id=form.id_prefix + secrets.token_hex(14),
        model=model,
        api_key=api_key,
        is_streamed=bool(asked.stream),
        started=now,
        last_news=now,
    )
