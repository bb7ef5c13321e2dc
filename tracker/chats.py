"""A chat's beginning: its route, its ticket, its row in the database. Synchronous; the stream is proxy.py's.

Each choice that a client asks for is a chat, a session of its own. How it ends is endings.py's: the database is used
before the first byte of an answer and after the last, and never in between.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.conf import settings
from django.db import transaction

from relay import wire
from tracker import epochs, metering, news, orders
from tracker.answers import Answer, Completion, Form
from tracker.epochs import Hops
from tracker.errors import ApiError
from tracker.heads import HeadCall
from tracker.limits import Wanted
from tracker.models import ApiKey, ChatSession, LanguageModel, SessionHop
from tracker.openai import ChatRequest, CompletionRequest
from tracker.words import layers_in_words

DEFAULT_MAX_TOKENS = 1024  # of a chat that names no number
BYTES_PER_TOKEN = 4  # of a prompt, about: only its head knows how many tokens it has


@dataclass(frozen=True, slots=True)
class RouteHead:
    """Who heads a chat, in words as a message has it."""

    peer_id: str
    name: str
    layers: str

    @classmethod
    def of(cls, hops: Hops) -> RouteHead:
        node, element = hops[0]
        return cls(node.peer_id, node.name, layers_in_words(element.start_layer, element.end_layer))

    def __str__(self) -> str:
        return f"{self.layers} on node {self.name}"


@dataclass(frozen=True, slots=True)
class Chat:
    """All that the proxy needs: whom to ask what, until when, and the answer to fill. At its next head it is another
    Chat with the same answer."""

    session_pk: int
    short_id: str  # as logs show the session
    epoch: int
    head: RouteHead
    request: wire.Request
    call: HeadCall
    answer: Answer
    deadline_s: float
    started: datetime
    resume_ms: dict[int, float] = field(default_factory=dict)  # by epoch: from the loss of a head to the next token


def begin(
    asked: ChatRequest | CompletionRequest, form: Form, api_key: ApiKey | None, now: datetime, request_id: str = ""
) -> list[Chat]:
    """Finds the routes, signs the tickets, writes the rows: a chat for each choice. Raises ApiError."""
    model = find_model(asked.model, api_key)
    deadline_s = _deadline_s(asked.wanted_deadline_s, model)
    wanted_tokens = asked.wanted_tokens or model.default_max_tokens or DEFAULT_MAX_TOKENS
    limit = min(wanted_tokens, model.context_length or DEFAULT_MAX_TOKENS)
    seeds = seeds_of(asked.seed, asked.num_choices)
    bodies = [orders.body_of(asked, limit, seed) for seed in seeds]
    wanted = Wanted(len(bodies[0]) // BYTES_PER_TOKEN, len(seeds) * limit, asked.limit_param)
    completion = _completion(asked, form, model.name, now)
    sessions = _sessions(
        asked,
        seeds,
        wanted,
        completion_id=completion.completion_id,
        request_id=request_id,
        model=model,
        api_key=api_key,
        max_tokens=limit,
        started=now,
        last_news=now,
        deadline=now + timedelta(seconds=deadline_s),
    )
    with metering.admitted(api_key, wanted, now) as completion.headers:
        routes = epochs.routes_of(model, now, len(seeds), need_tokens=wanted.prompt_tokens + limit)
        requests = [
            orders.request_of(session, hops, form.path, body, deadline_s, now)
            for session, hops, body in zip(sessions, routes, bodies, strict=True)
        ]
        _write(sessions, routes)
    for session in sessions:
        news.begin(session.pk)
    return [
        _chat(session, hops, request, completion, deadline_s)
        for session, hops, request in zip(sessions, routes, requests, strict=True)
    ]


def _sessions(
    asked: ChatRequest | CompletionRequest, seeds: list[int], wanted: Wanted, **common: Any
) -> list[ChatSession]:
    """A row for each choice, as yet unwritten. The first counts the prompt in the limits of its key."""
    common |= {"user": asked.wanted_user, "metadata": asked.wanted_metadata, "is_streamed": bool(asked.stream)}
    sessions = [
        ChatSession(session_id=secrets.token_hex(16), choice=choice, seed=seed, **common)
        for choice, seed in enumerate(seeds)
    ]
    for session in sessions:
        session.reserved_tokens = session.max_tokens
    sessions[0].reserved_tokens += wanted.prompt_tokens
    return sessions


def _write(sessions: list[ChatSession], routes: list[Hops]) -> None:
    """All of their rows, or none."""
    hops = map(epochs.hop_rows, sessions, routes)
    with transaction.atomic():
        ChatSession.objects.bulk_create(sessions)
        SessionHop.objects.bulk_create(chain.from_iterable(hops))


def seeds_of(wanted: int | None, num_choices: int) -> list[int]:
    """Choice i has the seed i further on, around the end of 64 bits: what it is can be asked for alone, too."""
    first = secrets.randbits(63) if wanted is None else wanted
    return [(first + choice + 2**63) % 2**64 - 2**63 for choice in range(num_choices)]


def _completion(asked: ChatRequest | CompletionRequest, form: Form, model_name: str, now: datetime) -> Completion:
    return Completion(
        form=form,
        completion_id=form.id_prefix + secrets.token_hex(14),
        created=int(now.timestamp()),
        model=model_name,
        includes_usage=asked.includes_usage,
        has_trace=asked.wants_trace,
        has_logprobs=asked.wanted_logprobs is not None,
    )


def _chat(session: ChatSession, hops: Hops, request: wire.Request, completion: Completion, deadline_s: float) -> Chat:
    return Chat(
        session_pk=session.pk,
        short_id=session.short_id,
        epoch=session.epoch,
        head=RouteHead.of(hops),
        request=request,
        call=orders.call_of(hops[0][0]),
        answer=completion.new_answer({node.peer_id: node.name for node, _ in hops}),
        deadline_s=deadline_s,
        started=session.started,
    )


def find_model(name: str, api_key: ApiKey | None) -> LanguageModel:
    """Raises ApiError 404, the same for a model that the key may not ask and for one that nobody has; 403 for one that
    the operator refuses."""
    models = LanguageModel.objects.for_key(api_key.pk if api_key else None)
    model = None if "\0" in name else models.filter(name=name).first()  # PostgreSQL refuses NUL
    if model is None:
        is_scoped = api_key is not None and api_key.allowed_models.exists()
        nor = ", or this API key may not ask it" if is_scoped else ""
        message = f"The model '{name[:100]}' does not exist here{nor}. GET /v1/models lists those that can be asked."
        raise ApiError(404, message, code="model_not_found", param="model")
    if refusal := model.refusal:
        raise ApiError(403, f"{refusal[0].upper()}{refusal[1:]}.", code="model_refused", param="model")
    return model


def _deadline_s(wanted: float | None, model: LanguageModel) -> float:
    """Raises ApiError 400 where more is asked for than the operator gives."""
    longest = min(float(settings.REQUEST_DEADLINE_S), wire.MAX_DEADLINE_S, model.deadline_s or wire.MAX_DEADLINE_S)
    if wanted is not None and wanted > longest:
        param, most = "meshnet.deadline_s", f"at most {longest:g} seconds are given here"
        raise ApiError(400, f"{param}: is {wanted:g}; {most}.", code="invalid_value", param=param)
    return longest if wanted is None else wanted
