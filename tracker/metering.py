"""What counts against an API key's limits now, read from the rows of its sessions; lets a request in, or refuses it.

The rows are the only books: every process sees them, and a process that dies takes nothing along. While a request is
let in its key's row is locked, until the rows of its sessions are written: no two processes give away the same room.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import BigIntegerField, Case, Count, F, Max, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Coalesce

from tracker import limits, tallies
from tracker.errors import ApiError
from tracker.limits import (
    MAX_CONCURRENT,
    REQUESTS_PER_MINUTE,
    TOKENS_PER_DAY,
    TOKENS_PER_MINUTE,
    Limit,
    Standing,
    Wanted,
)
from tracker.models import ApiKey, ChatSession, Usage
from tracker.models.sessions import LOST_AFTER

PER_MINUTE = (REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE)
MINUTE = timedelta(seconds=60)
SOON_S = 2.0  # room that comes when a running request ends: nobody knows when


@contextmanager
def admitted(key: ApiKey | None, wanted: Wanted, now: datetime) -> Iterator[dict[str, str]]:
    """The headers that tell what is left, for a block that writes the sessions' rows. Raises ApiError 400, 401, 429.

    The block is a transaction where the key has limits. (SQLite locks nothing here; it has one writer.)
    """
    if key is None or not key.limits():
        yield {}
        return
    with transaction.atomic():
        locked = ApiKey.objects.select_for_update(no_key=True).filter(pk=key.pk).first()
        if locked is None:
            raise ApiError(401, "This API key was deleted.", code="invalid_api_key")
        standings = _check(locked, wanted, now)
        yield limits.headers([one.after(wanted, _full_in_s(one.limit, now)) for one in standings])


def standings(key: ApiKey, now: datetime) -> list[Standing]:
    """Of the limits that the key has."""
    most, used, newest = key.limits(), {}, None
    if REQUESTS_PER_MINUTE in most or TOKENS_PER_MINUTE in most:
        window = _window(key, now)
        newest, used = window["newest"], {limit: window[limit.counts] for limit in PER_MINUTE}
    if TOKENS_PER_DAY in most or MAX_CONCURRENT in most:
        running = _running(key, now)
        used |= {MAX_CONCURRENT: running["requests"], TOKENS_PER_DAY: running["today"]}
    if TOKENS_PER_DAY in most:
        used[TOKENS_PER_DAY] += _spent_today(key, now)
    minute_s = (newest + MINUTE - now).total_seconds() if newest else 0.0
    resets_s = {limit: minute_s if limit in PER_MINUTE else _full_in_s(limit, now) for limit in most}
    return [Standing(limit, most[limit], used[limit], resets_s[limit] if used[limit] else 0.0) for limit in most]


def _check(key: ApiKey, wanted: Wanted, now: datetime) -> list[Standing]:
    found = standings(key, now)
    limits.check_size(found, wanted)
    full = [one for one in found if one.lacks(wanted) > 0]
    if not full:
        return found
    room_in_s = {one.limit: _room_in_s(key, one, wanted, now) for one in full}
    last = max(full, key=lambda one: room_in_s[one.limit])
    raise limits.refusal(last, wanted, room_in_s[last.limit], found)


def _room_in_s(key: ApiKey, full: Standing, wanted: Wanted, now: datetime) -> float:
    """Of a limit without room for this request: when there will be."""
    lacks = full.lacks(wanted)
    if full.limit is MAX_CONCURRENT:
        return SOON_S
    if full.limit is TOKENS_PER_DAY:
        return SOON_S if _running(key, now)["today"] >= lacks else _full_in_s(full.limit, now)
    rows = _last_minute(key, now).order_by("started")
    amounts = rows.filter(choice=0).values_list("started", Value(1))
    if full.limit is TOKENS_PER_MINUTE:
        amounts = rows.values_list("started", _counted_tokens(now))
    held = (((started + MINUTE - now).total_seconds(), amount) for started, amount in amounts.iterator())
    return limits.wait_s(held, lacks) or 0.0


def _window(key: ApiKey, now: datetime) -> dict[str, Any]:
    sums = _last_minute(key, now).aggregate(
        requests=Count("pk", filter=Q(choice=0)), tokens=Sum(_counted_tokens(now)), newest=Max("started")
    )
    return sums | {"tokens": sums["tokens"] or 0}


def _last_minute(key: ApiKey, now: datetime) -> QuerySet[ChatSession]:
    return ChatSession.objects.filter(api_key=key, started__gt=now - MINUTE)


def _running(key: ApiKey, now: datetime) -> dict[str, int]:
    """Requests, and the tokens that those begun today have reserved. Sessions whose process died don't count."""
    running = ChatSession.objects.running(now).filter(api_key=key)
    sums = running.aggregate(
        requests=Count("completion_id", distinct=True),
        today=Sum("reserved_tokens", filter=Q(started__gte=_midnight(now))),
    )
    return {"requests": sums["requests"], "today": sums["today"] or 0}


def _spent_today(key: ApiKey, now: datetime) -> int:
    today = Usage.objects.filter(api_key=key, day=tallies.day_of(now))
    return today.aggregate(tokens=Sum(F("prompt_tokens") + F("completion_tokens")))["tokens"] or 0


def _counted_tokens(now: datetime) -> Case:
    """Of a session: what it has reserved while it runs, then what it was. The prompt is the first choice's."""
    is_running = Q(state=ChatSession.State.RUNNING, last_news__gt=now - LOST_AFTER)
    prompt, answer = Coalesce(F("prompt_tokens"), 0), Coalesce(F("completion_tokens"), 0)
    return Case(
        When(is_running, then=F("reserved_tokens")),
        When(choice=0, then=prompt + answer),
        default=answer,
        output_field=BigIntegerField(),
    )


def _full_in_s(limit: Limit, now: datetime) -> float:
    """From a request's beginning until it counts no more."""
    if limit is TOKENS_PER_DAY:
        return (_midnight(now) + timedelta(days=1) - now).total_seconds()
    return SOON_S if limit is MAX_CONCURRENT else MINUTE.total_seconds()


def _midnight(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
