"""A chat's beginning and end in the database: its route, its ticket, its row. Synchronous; the stream is proxy.py's.

Nothing here runs between the first byte of an answer and the last.
"""

from __future__ import annotations

import json
import random
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from relay import headers, presence, wire
from tracker import tickets
from tracker.answers import Answer, Form
from tracker.errors import ApiError
from tracker.heads import HeadCall, by_http, through_relay
from tracker.models import ApiKey, ChatSession, LanguageModel, Node, SessionHop
from tracker.models.sessions import lost_after
from tracker.openai import ChatRequest, CompletionRequest
from tracker.routing import Candidate, NoRoute, RouteElement, find_route

DEFAULT_MAX_TOKENS = 1024  # of a chat that names no number
TICKET_MARGIN_S = 60  # beyond the deadline, in which hops are still freed under the ticket
PATHS = frozenset(SessionHop.Path.values)

Hops = list[tuple[Node, RouteElement]]


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
    hops = route_of(model, now)
    seed = secrets.randbits(63) if asked.seed is None else asked.seed
    limit = min(asked.wanted_tokens or DEFAULT_MAX_TOKENS, model.context_length or DEFAULT_MAX_TOKENS)
    body, key = _head_body(asked, limit, seed), _signing_key()
    session = _write_rows(asked, form, model, api_key, hops, seed, now)
    deadline_s = min(float(settings.REQUEST_DEADLINE_S), wire.MAX_DEADLINE_S)
    ticket = tickets.sign(
        key,
        session=session.session_id,
        epoch=0,
        fingerprint=model.fingerprint,
        hops=[(node.peer_id, element.start_layer, element.end_layer) for node, element in hops],
        dtype=model.wire_dtype,
        max_tokens=limit,
        seed=seed,
        expires=int(now.timestamp() + deadline_s + TICKET_MARGIN_S),
    )
    head = hops[0][0]
    request = wire.Request(
        request_id=secrets.token_hex(16),
        method="POST",
        path=form.path,
        headers=_head_headers(session, ticket, hops[1:], model, deadline_s),
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


def route_of(model: LanguageModel, now: datetime) -> Hops:
    """The nodes to go through and the layers of each. Raises ApiError 503 naming the layers that are missing."""
    online = Node.objects.filter(model=model).online(now, presence.present()).with_load(now - lost_after())
    nodes = {node.peer_id: node for node in online.select_related("shard", "model")}
    candidates = [
        Candidate(node.peer_id, node.shard.start_layer, node.shard.end_layer, node.load) for node in nodes.values()
    ]
    if not model.num_layers:
        raise ApiError(503, f"No node has joined for {model.name} yet.", code="no_route")
    try:
        route = find_route(candidates, model.num_layers, random.SystemRandom())
    except NoRoute as error:
        raise ApiError(503, f"{model.name} can't answer now: {error}.", code="no_route") from None
    return [(nodes[element.peer_id], element) for element in route]


def route_problem(model: LanguageModel, now: datetime) -> str | None:
    """Why the model can't answer now, in words; None when it can."""
    try:
        route_of(model, now)
    except ApiError as error:
        return error.message
    return None


def hop_of(node: Node, element: RouteElement, now: datetime) -> headers.Hop:
    """As the head sees it: the endpoint only while it is proved, by the address that was checked."""
    endpoint = node.dial_url if node.is_endpoint_proved(now) else None
    wire_versions = tuple(node.wire_versions) or (1,)  # a node of an earlier site has said nothing yet
    layers = element.start_layer, element.end_layer
    return headers.Hop(node.peer_id, *layers, endpoint, node.relay_addr, wire_versions)


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


def _head_headers(
    session: ChatSession, ticket: str, downstream: Hops, model: LanguageModel, deadline_s: float
) -> dict[str, str]:
    """Written afresh: of the client's headers none crosses."""
    route = [hop_of(node, element, session.started) for node, element in downstream]
    return {
        "content-type": "application/json",
        headers.SESSION: session.session_id,
        headers.EPOCH: "0",
        headers.TICKET: ticket,
        headers.ROUTE: headers.encode_route(route),
        headers.PREFILL_CHUNK: str(model.fitting_chunk_tokens),
        headers.DEADLINE_MS: str(int(deadline_s * 1000)),
    }


def _signing_key() -> tickets.SigningKey:
    keys = tickets.signing_keys()
    if not keys:
        raise ApiError(500, "This site has no key to sign tickets with: run manage.py migrate, or set TICKET_KEYS.")
    return keys[0]


def _write_rows(
    asked: ChatRequest | CompletionRequest,
    form: Form,
    model: LanguageModel,
    api_key: ApiKey | None,
    hops: Hops,
    seed: int,
    now: datetime,
) -> ChatSession:
    with transaction.atomic():
        session = ChatSession.objects.create(
            session_id=secrets.token_hex(16),
            completion_id=form.id_prefix + secrets.token_hex(14),
            model=model,
            api_key=api_key,
            is_streamed=bool(asked.stream),
            seed=seed,
            started=now,
        )
        SessionHop.objects.bulk_create(
            SessionHop(
                session=session,
                position=position,
                node=node,
                node_name=node.name,
                start_layer=element.start_layer,
                end_layer=element.end_layer,
            )
            for position, (node, element) in enumerate(hops)
        )
    return session
