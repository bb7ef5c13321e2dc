"""A chat's end in the database: how it ended, what was used, who served it. Synchronous."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from tracker import accusations, contributions, figures, news, progress, reports, usage
from tracker.answers import Answer
from tracker.chats import Chat
from tracker.errors import known_code
from tracker.models import ChatSession


@dataclass(slots=True)
class Outcome:
    """How a chat ended. Whoever ends it says so; what ends in no such way is a fault of ours."""

    state: str = ChatSession.State.FAILED
    ttft_ms: float | None = None
    error_code: str = "internal_error"
    error_message: str = ""  # as the client is told
    error_details: str = ""  # as it was noticed, where that is more


def finish(chat: Chat, outcome: Outcome, now: datetime) -> None:
    """Writes how it ended, and what was used."""
    news.end(chat.session_pk)
    answer, end = chat.answer, _end_of(chat.answer, outcome, now)
    with transaction.atomic():
        for session in usage.lock(ChatSession.objects.filter(completion_id=answer.completion.completion_id)):
            if session.pk == chat.session_pk:
                usage.count_end(session, end)
        ChatSession.objects.filter(pk=chat.session_pk).update(**end)
    if answer.last_told and answer.last_told.steps:
        progress.write_steps([(chat.session_pk, answer.last_told.steps)])
    with transaction.atomic():
        hops = reports.write(chat.session_pk, answer)
        contributions.count(hops, answer, now)
    _count(outcome, end)
    if outcome.state == ChatSession.State.DONE:
        accusations.carried(hops, now)
    reports.write_resumed(chat.session_pk, chat.resume_ms)


def _count(outcome: Outcome, end: dict[str, Any]) -> None:
    """Codes of the table alone: a node may say what it likes, and every label is kept for good."""
    code = "" if outcome.state != ChatSession.State.FAILED else known_code(outcome.error_code)
    figures.chats_ended.labels(outcome.state, code).inc()
    figures.tokens.labels("prompts").inc(end["prompt_tokens"] or 0)
    figures.tokens.labels("answers").inc(end["completion_tokens"] or 0)


def _end_of(answer: Answer, outcome: Outcome, now: datetime) -> dict[str, Any]:
    """What its row then says."""
    hops = answer.report.all_hops if answer.report else None
    return {
        "state": outcome.state,
        "ended": now,
        "finish_reason": answer.finish_reason or "",
        "prompt_tokens": answer.prompt_tokens if answer.report or answer.prompt_ids else None,
        "completion_tokens": answer.completion_tokens,
        "drafted_tokens": None if hops is None else sum(hop.drafted for hop in hops),
        "accepted_tokens": None if hops is None else sum(hop.accepted for hop in hops),
        "ttft_ms": outcome.ttft_ms,
        "error_code": outcome.error_code[:60] if outcome.state == ChatSession.State.FAILED else "",
        "error_message": outcome.error_message[:2000],
        "error_details": outcome.error_details[:2000],
    }
