"""Sessions: who asks what now and before, over which nodes, how fast, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import F, Prefetch

from tracker.dashboard import session_filters
from tracker.dashboard.pages import Ask, Context, Page
from tracker.dashboard.paging import paged
from tracker.dashboard.session_filters import STATES
from tracker.models import ChatSession, LanguageModel, SessionHop

_OF_NOW = SessionHop.objects.filter(epoch=F("session__epoch")).order_by("position")


def context(ask: Ask) -> Context:
    found = session_filters.filtered(ask).select_related("model")
    shown = paged(found.prefetch_related(Prefetch("hops", _OF_NOW)), ask)
    return {
        "rows": rows_of(shown.rows, ask.now),
        "paged": shown,
        "running": ChatSession.objects.running(ask.now).count(),
        "is_filtered": session_filters.is_filtered(ask),
        "chosen": {name: ask.param(name) for name in ("q", "state", "model")},
        "states": {name: words for name, (words, _) in STATES.items()},
        "models": list(LanguageModel.objects.values_list("name", flat=True)),
        "public_url": settings.PUBLIC_URL,
    }


def rows_of(sessions: Sequence[ChatSession], now: datetime) -> list[dict[str, Any]]:
    return [
        {
            "id": session.completion_id,
            "choice": session.choice,
            "short_id": session.short_id,
            "started": session.started,
            "model": session.model.name,
            "state": session.state_at(now),
            "is_ending": bool(session.cancelled_by) and session.state_at(now) == ChatSession.State.RUNNING,
            "error_code": session.error_code,
            "nodes": [hop.node_name for hop in session.hops.all()],
            "failovers": session.epoch,
            "prompt_tokens": session.prompt_tokens,
            "completion_tokens": session.completion_tokens,
            "tokens_per_s": session.tokens_per_s,
            "ttft_ms": session.ttft_ms,
        }
        for session in sessions
    ]


page = Page("session-list", "Sessions", context, every_s=2.0)
