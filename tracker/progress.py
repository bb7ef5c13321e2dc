"""What is known of sessions that run, written for those who look on: tokens so far, each hop's figures, last steps.

A few statements for all sessions of a process, again and again; nothing is written for a single token. Synchronous.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from django.db.models import F

from tracker import hopreports, reports
from tracker.models import ChatSession, SessionHop, SessionSteps

MAX_AT_ONCE = 100  # sessions in one pass: the others have their turn in the next
_ROUTE = ("session", "epoch", "position")


@dataclass(frozen=True, slots=True)
class Known:
    prompt_tokens: int
    completion_tokens: int
    ttft_ms: float | None
    progress: hopreports.Progress | None


def write(news: Mapping[int, Known]) -> list[int]:
    """By the keys of their rows, which are locked. Those that were written."""
    chosen = dict(islice(news.items(), MAX_AT_ONCE))
    if not chosen:
        return []
    rows = [
        ChatSession(
            pk=pk, prompt_tokens=one.prompt_tokens, completion_tokens=one.completion_tokens, ttft_ms=one.ttft_ms
        )
        for pk, one in chosen.items()
    ]
    ChatSession.objects.bulk_update(rows, ["prompt_tokens", "completion_tokens", "ttft_ms"])
    told = {pk: one.progress for pk, one in chosen.items() if one.progress}
    if told:
        _write_hops(told)
        write_steps((pk, one.steps) for pk, one in told.items())
    return list(chosen)


def write_steps(steps: Iterable[tuple[int, Iterable[hopreports.Step]]]) -> None:
    rows = [SessionSteps(session_id=pk, steps=list(of_session)) for pk, of_session in steps]
    SessionSteps.objects.bulk_create(rows, update_conflicts=True, unique_fields=["session"], update_fields=["steps"])


def _write_hops(told: Mapping[int, hopreports.Progress]) -> None:
    """Of the routes of now. What each hop has worked in tokens is counted when its session ends (contributions.py)."""
    of_now = SessionHop.objects.filter(session__in=told, epoch=F("session__epoch")).select_related("node")
    changed = []
    for hop in of_now:
        peer_id = hop.node.peer_id if hop.node else ""
        for one in told[hop.session_id].hops:
            if (one.peer_id, one.start_layer, one.end_layer) == (peer_id, hop.start_layer, hop.end_layer):
                reports.fill(hop, one)
                hop.pk = None  # its row is found by its place on the route
                changed.append(hop)
    SessionHop.objects.bulk_create(changed, update_conflicts=True, unique_fields=_ROUTE, update_fields=reports.FIGURES)
