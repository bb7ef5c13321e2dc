"""What was used with each key, a row for each day and model: written as sessions end, told to the key's holder.

A session counts on the day (UTC) on which it began, once, whatever became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any

from django.db.models import QuerySet, Sum

from tracker import tallies
from tracker.models import ApiKey, ChatSession, Usage

COUNTS = ("requests", "failed", "prompt_tokens", "completion_tokens")


def lock(sessions: QuerySet[ChatSession]) -> list[ChatSession]:
    """Their rows for a transaction that ends them. Always in this order: of two that end the same, one waits."""
    return list(sessions.select_for_update(of=("self",)).select_related("model").order_by("pk"))


def count_end(session: ChatSession, end: Mapping[str, Any]) -> None:
    """Adds what a session was, whose row is locked and is about to be given `end`.

    One that was ended as lost and comes back all the same adds only what is new: its tokens.
    """
    before = _counts(session, vars(session)) if session.ended else dict.fromkeys(COUNTS, 0)
    after = _counts(session, end)
    changes = {name: after[name] - before[name] for name in COUNTS}
    if changes["failed"] and _has_failed_elsewhere(session):
        changes["failed"] = 0
    _add(session, changes)


def days(key: ApiKey, since: date) -> list[dict[str, Any]]:
    rows = Usage.objects.filter(api_key=key, day__gte=since).order_by("-day", "model_name")
    return [{"day": row.day.isoformat(), "model": row.model_name} | _told(vars(row)) for row in rows]


def totals(rows: QuerySet[Usage]) -> dict[str, int]:
    return _told(rows.order_by().aggregate(**{name: Sum(name, default=0) for name in COUNTS}))


def since(now: datetime, num_days: int) -> date:
    """The first of so many days, of which today is the last."""
    return tallies.day_of(now) - timedelta(days=num_days - 1)


def _counts(session: ChatSession, end: Mapping[str, Any]) -> dict[str, int]:
    """The choices of a request are one request with one prompt, the first choice's."""
    is_first = session.choice == 0
    return {
        "requests": int(is_first),
        "failed": int(end["state"] == ChatSession.State.FAILED),
        "prompt_tokens": (end.get("prompt_tokens") or 0) if is_first else 0,
        "completion_tokens": end.get("completion_tokens") or 0,
    }


def _has_failed_elsewhere(session: ChatSession) -> bool:
    """Another choice of the same request."""
    others = ChatSession.objects.filter(completion_id=session.completion_id).exclude(pk=session.pk)
    return others.filter(state=ChatSession.State.FAILED).exists()


def _add(session: ChatSession, changes: Mapping[str, int]) -> None:
    day = tallies.day_of(session.started)
    key = {"api_key_id": session.api_key_id, "model_name": session.model.name, "day": day}
    tallies.add(Usage.objects, key, changes)


def _told(counts: Mapping[str, Any]) -> dict[str, int]:
    told = {name: int(counts[name]) for name in COUNTS}
    return told | {"total_tokens": told["prompt_tokens"] + told["completion_tokens"]}
