"""What is known of sessions that run, written for those who look on: tokens so far, each hop's figures, last steps.

A few statements for all sessions of a process, again and again; nothing is written for a single token. Synchronous.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from django.db.models import F

from tracker import reports
from tracker.hopreports import FailoverReport, Report, Step
from tracker.models import ChatSession, SessionHop, SessionSteps

MAX_AT_ONCE = 100  # sessions in one pass: the others have their turn in the next
NUM_EPOCHS = 8  # of a session, whose hops are written while it runs; at its end all are
_ROUTE = ("session", "epoch", "position")


@dataclass(frozen=True, slots=True)
class Known:
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float | None
    report: Report | None


News = Mapping[int, tuple[Known, Known | None]]  # by the keys of their rows: what is known, and what was written before


def write(news: News) -> list[int]:
    """Of sessions whose rows are locked; the keys of those that were written."""
    chosen = dict(islice(news.items(), MAX_AT_ONCE))
    if not chosen:
        return []
    rows = [
        ChatSession(
            pk=pk, prompt_tokens=one.prompt_tokens, completion_tokens=one.completion_tokens, ttft_ms=one.ttft_ms
        )
        for pk, (one, _) in chosen.items()
    ]
    ChatSession.objects.bulk_update(rows, ["prompt_tokens", "completion_tokens", "ttft_ms"])
    told = {pk: one.report for pk, (one, _) in chosen.items() if one.report}
    if told:
        _write_hops(told)
        write_steps((pk, one.steps) for pk, one in told.items())
    for pk, (one, before) in chosen.items():
        reports.write_failovers(pk, _new_failovers(one, before))
    return list(chosen)


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
    for hop in changed:
        hop.pk = None  # its row is found by its place on the route
    SessionHop.objects.bulk_create(changed, update_conflicts=True, unique_fields=_ROUTE, update_fields=reports.FIGURES)


def _new_failovers(known: Known, before: Known | None) -> set[FailoverReport]:
    told, written = (set(one.report.failovers) if one and one.report else set() for one in (known, before))
    return told - written
