"""Bans: a node that is kept out for a time or until somebody lifts that; when it is over, and its words. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

FOR_GOOD = datetime(9999, 12, 31, tzinfo=UTC)  # until somebody lifts it
PERIODS = {  # as forms offer them
    "1h": ("an hour", timedelta(hours=1)),
    "1d": ("a day", timedelta(days=1)),
    "7d": ("a week", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
    "never": ("until it is lifted", None),
}


def end_of(lasts: timedelta | None, now: datetime) -> datetime:
    return FOR_GOOD if lasts is None else now + lasts


def in_words(until: datetime | None, reason: str, now: datetime) -> str | None:
    """ "banned until 2026-12-01 10:00 UTC: it answers nonsense"; None where nobody is kept out (any more)."""
    if until is None or until <= now:
        return None
    end = "until the operator lifts it" if until >= FOR_GOOD else f"until {until:%Y-%m-%d %H:%M} UTC"
    return f"banned {end}{f': {reason}' if reason else ''}"


def wait_s(until: datetime, now: datetime) -> int:
    """Seconds until it is over, as a Retry-After has it: a day at most."""
    return int(min(86_400, max(1, (until - now).total_seconds())))
