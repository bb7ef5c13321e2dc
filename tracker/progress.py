"""What is known of sessions that run, written for those who look on: tokens so far, each hop's figures, last steps.

A few statements for all sessions of a process, again and again; nothing is written for a single token. The tokens of
all are written each time, the hops and steps of some, in turn. Synchronous.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import F, Model

from tracker import reports
from tracker.hopreports import FailoverReport, Report, Step
from tracker.models import ChatSession, SessionHop, SessionSteps

MAX_AT_ONCE = 50  # sessions whose hops and steps are written in one pass
NUM_EPOCHS = 8  # of a session, whose hops are written while it runs; at its end all are
_TOKENS = ("prompt_tokens", "completion_tokens", "ttft_ms", "last_token")


@dataclass(frozen=True, slots=True)
class Known:
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float | None
    resume_ms: tuple[tuple[int, float], ...] = ()  # by epoch: from the loss of a head to the next token
    report: Report | None = None
    last_token: datetime | None = None  # when there were so many

    @property
    def tokens(self) -> tuple[Any, ...]:
        """As the database takes them."""
        last_token = connection.ops.adapt_datetimefield_value(self.last_token)
        return self.prompt_tokens, self.completion_tokens, self.ttft_ms, last_token


def write(news: Mapping[int, tuple[Known, Known | None]]) -> dict[int, Known]:
    """`news`: what is known and what was written before, by the keys of sessions' rows, which are locked; those whose
    turn it is come first. What has been written by then."""
    _update(ChatSession, _TOKENS, [(*now.tokens, pk) for pk, (now, _) in news.items()])
    written = {pk: replace(now, report=before.report if before else None) for pk, (now, before) in news.items()}
    for pk, (now, before) in news.items():
        reports.write_resumed(pk, dict(now.resume_ms[len(before.resume_ms) if before else 0 :]))
    told = {pk: now.report for pk, (now, _) in news.items() if now.report and now.report != written[pk].report}
    told = dict(list(told.items())[:MAX_AT_ONCE])
    if told:
        _write_hops(told)
        write_steps((pk, report.steps) for pk, report in told.items())
    for pk, report in told.items():
        reports.write_failovers(pk, _new_failovers(report, written[pk].report))
        written[pk] = news[pk][0]
    return written


def write_steps(steps: Iterable[tuple[int, Iterable[Step]]]) -> None:
    rows = [SessionSteps(session_id=pk, steps=list(of_session)) for pk, of_session in steps]
    SessionSteps.objects.bulk_create(rows, update_conflicts=True, unique_fields=["session"], update_fields=["steps"])


def _write_hops(told: Mapping[int, Report]) -> None:
    """What each hop has worked in tokens is counted when its session ends (contributions.py)."""
    newest = SessionHop.objects.filter(session__in=told, epoch__gt=F("session__epoch") - NUM_EPOCHS)
    by_session: defaultdict[int, list[SessionHop]] = defaultdict(list)
    for hop in newest.select_related("node"):
        by_session[hop.session_id].append(hop)
    changed = [hop for pk, hops in by_session.items() for hop, _ in reports.fill(hops, told[pk])]
    rows = [(*(getattr(hop, name) for name in reports.FIGURES), hop.pk) for hop in changed]
    _update(SessionHop, reports.FIGURES, rows)


def _update(model: type[Model], fields: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Each row's values, and its key last. At once: Django's bulk_update takes ten times as long, and holds up who
    streams meanwhile."""
    if not rows:
        return
    quote = connection.ops.quote_name
    sets = ", ".join(f"{quote(name)} = %s" for name in fields)
    with connection.cursor() as cursor:
        cursor.executemany(f"UPDATE {quote(model._meta.db_table)} SET {sets} WHERE id = %s", rows)


def _new_failovers(report: Report, before: Report | None) -> set[FailoverReport]:
    return set(report.failovers) - set(before.failovers if before else ())
