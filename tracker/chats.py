"""A chat's beginning and end in the database: its route, its ticket, its row. Synchronous; the stream is proxy.py's.

Nothing here runs between the first byte of an answer and the last.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F

from relay import wire
from tracker import accusations, epochs, metering, news, orders, usage
from tracker.answers import Answer, Completion, Form
from tracker.epochs import Hops
from tracker.errors import ApiError
from tracker.events import Report
from tracker.heads import HeadCall
from tracker.limits import Wanted
from tracker.models import ApiKey, ChatSession, Failover, LanguageModel, Node, SessionHop
from tracker.openai import ChatRequest, CompletionRequest
from tracker.words import layers_in_words

DEFAULT_MAX_TOKENS = 1024  # of a chat that names no number
BYTES_PER_TOKEN = 4  # of a prompt, about: only its head knows how many tokens it has
PATHS, KEPT = frozenset(SessionHop.Path.values), frozenset(Failover.Kept.values)


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


@dataclass(slots=True)
class Outcome:
    """How a chat ended. Whoever ends it says so; what ends in no such way is a fault of ours."""

    state: str = ChatSession.State.FAILED
    ttft_ms: float | None = None
    error_code: str = "internal"
    error_message: str = ""


def begin(asked: ChatRequest | CompletionRequest, form: Form, api_key: ApiKey | None, now: datetime) -> Chat:
    """Finds the route, signs the ticket, writes the rows. Raises ApiError."""
    model = find_model(asked.model, api_key)
    deadline_s = _deadline_s(asked.wanted_deadline_s)
    seed = secrets.randbits(63) if asked.seed is None else asked.seed
    limit = min(asked.wanted_tokens or DEFAULT_MAX_TOKENS, model.context_length or DEFAULT_MAX_TOKENS)
    body = orders.body_of(asked, limit, seed)
    wanted = Wanted(prompt_tokens=len(body) // BYTES_PER_TOKEN, answer_tokens=limit)
    metering.check(api_key, wanted, now)
    hops = epochs.route_of(model, now, need_tokens=wanted.tokens)
    session = _new_session(asked, form, model, api_key, now)
    session.seed, session.max_tokens, session.deadline = seed, limit, now + timedelta(seconds=deadline_s)
    session.reserved_tokens = wanted.tokens
    request = orders.request_of(session, hops, form.path, body, deadline_s, now)
    with transaction.atomic():
        told = metering.admit(api_key, wanted, now)
        session.save()
        epochs.write_hops(session, hops)
    news.begin(session.pk)
    completion = Completion(
        form=form,
        completion_id=session.completion_id,
        created=int(now.timestamp()),
        model=model.name,
        includes_usage=asked.includes_usage,
        has_trace=asked.wants_trace,
        has_logprobs=asked.wanted_logprobs is not None,
        headers=told,
    )
    answer = completion.new_answer({node.peer_id: node.name for node, _ in hops})
    head = RouteHead.of(hops)
    return Chat(session.pk, session.short_id, 0, head, request, orders.call_of(hops[0][0]), answer, deadline_s, now)


def finish(chat: Chat, outcome: Outcome, now: datetime) -> None:
    """Writes how it ended, and what was used."""
    news.end(chat.session_pk)
    answer, end = chat.answer, _end_of(chat.answer, outcome, now)
    with transaction.atomic():
        for session in usage.lock(ChatSession.objects.filter(completion_id=answer.completion.completion_id)):
            if session.pk == chat.session_pk:
                usage.count_end(session, end)
        ChatSession.objects.filter(pk=chat.session_pk).update(**end)
    if outcome.state == ChatSession.State.DONE:
        accusations.carried(chat.session_pk, now)
    if answer.report:
        write_report(chat.session_pk, answer.report)
    for epoch, resume_ms in chat.resume_ms.items():
        Failover.objects.filter(session=chat.session_pk, epoch=epoch).update(resume_ms=resume_ms)


def _end_of(answer: Answer, outcome: Outcome, now: datetime) -> dict[str, Any]:
    """What its row then says."""
    return {
        "state": outcome.state,
        "ended": now,
        "finish_reason": answer.finish_reason or "",
        "prompt_tokens": answer.prompt_tokens if answer.report or answer.prompt_ids else None,
        "completion_tokens": answer.completion_tokens,
        "drafted_tokens": sum(hop.drafted for hop in answer.report.hops) if answer.report else None,
        "accepted_tokens": sum(hop.accepted for hop in answer.report.hops) if answer.report else None,
        "ttft_ms": outcome.ttft_ms,
        "error_code": outcome.error_code[:60] if outcome.state == ChatSession.State.FAILED else "",
        "error_message": outcome.error_message[:2000],
    }


def write_report(session_pk: int, report: Report) -> None:
    """What a head says of the hops of the session's route, and of what it has gone on without."""
    here = SessionHop.objects.filter(session=session_pk, epoch=F("session__epoch"))
    for hop in report.hops:
        mine = here.filter(node__peer_id=hop.peer_id, start_layer=hop.start_layer, end_layer=hop.end_layer)
        mine.update(
            path=hop.path if hop.path in PATHS else "",
            steps=hop.steps,
            ms_total=hop.ms_total,
            compute_ms=hop.compute_ms,
            queue_ms=hop.queue_ms,
        )
    for told in report.failovers:
        Failover.objects.filter(session=session_pk, epoch=told.epoch).update(
            kept=told.kept if told.kept in KEPT else "",
            resume_ms=told.resume_ms,
            replayed_tokens=told.replayed_tokens,
            replay_compute_ms=told.replay_compute_ms,
        )


def names_of(peer_ids: Collection[str]) -> dict[str, str]:
    return dict(Node.objects.filter(peer_id__in=peer_ids).values_list("peer_id", "name"))


def names_on_routes(session_pk: int) -> dict[str, str]:
    """By peer id, of all epochs so far: heads take other routes without asking the proxy."""
    hops = SessionHop.objects.filter(session=session_pk, node__isnull=False)
    return dict(hops.values_list("node__peer_id", "node_name"))


def find_model(name: str, api_key: ApiKey | None) -> LanguageModel:
    """Raises ApiError 404: the same for a model that the key may not ask and for one that nobody has."""
    models = LanguageModel.objects.for_key(api_key)
    model = None if "\0" in name else models.filter(name=name).first()  # PostgreSQL refuses NUL
    if model is None:
        is_scoped = api_key is not None and api_key.allowed_models.exists()
        nor = ", or this API key may not ask it" if is_scoped else ""
        message = f"The model '{name[:100]}' does not exist here{nor}. GET /v1/models lists those that can be asked."
        raise ApiError(404, message, code="model_not_found", param="model")
    return model


def _deadline_s(wanted: float | None) -> float:
    """Raises ApiError 400 where more is asked for than the operator gives."""
    longest = min(float(settings.REQUEST_DEADLINE_S), wire.MAX_DEADLINE_S)
    if wanted is not None and wanted > longest:
        param, most = "meshnet.deadline_s", f"at most {longest:g} seconds are given here"
        raise ApiError(400, f"{param}: is {wanted:g}; {most}.", code="invalid_value", param=param)
    return longest if wanted is None else wanted


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
