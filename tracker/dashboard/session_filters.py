"""Which sessions a list shows: by state, by model, by text. Decided by the database, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet

from tracker.dashboard.pages import Ask
from tracker.errors import writable
from tracker.models import ChatSession, SessionHop
from tracker.models.sessions import LOST_AFTER

MAX_TEXT = 100  # characters that are searched for
SHORT_ID = 8  # characters: of a session's id no page tells more, and none confirms more
State = ChatSession.State
Which = Callable[[datetime], Q]


def _running(now: datetime) -> Q:
    return Q(state=State.RUNNING, last_news__gt=now - LOST_AFTER)


def _lost(now: datetime) -> Q:
    return Q(state=State.RUNNING, last_news__lte=now - LOST_AFTER) | Q(state=State.FAILED, error_code="lost")


STATES: dict[str, tuple[str, Which]] = {
    "running": ("running", _running),
    "done": ("done", lambda now: Q(state=State.DONE)),
    "failed": ("failed", lambda now: Q(state=State.FAILED)),
    "cancelled": ("cancelled", lambda now: Q(state=State.CANCELLED)),
    "lost": ("lost with their process", _lost),
    "survived": ("went on without a node", lambda now: Q(epoch__gt=0)),
}


def filtered(ask: Ask) -> QuerySet[ChatSession]:
    """What the query asks for; values that aren't ours filter nothing."""
    sessions: QuerySet[ChatSession] = ChatSession.objects.all()
    if ask.param("state") in STATES:
        _, which = STATES[ask.param("state")]
        sessions = sessions.filter(which(ask.now))
    if ask.param("model"):
        sessions = sessions.filter(model__name=writable(ask.param("model")))
    for word in writable(ask.param("q"))[:MAX_TEXT].split():
        sessions = sessions.filter(_somewhere(word))
    return sessions.order_by("-started", "completion_id", "choice")  # choices of an answer begin at one time


def is_filtered(ask: Ask) -> bool:
    return any(ask.param(name) for name in ("state", "model", "q"))


def _somewhere(word: str) -> Q:
    """In its ids, in who it was for, in what came of it, or in the name of a node that served it."""
    found = Q(completion_id__startswith=word) | Q(request_id__startswith=word)
    for field in ("user", "api_key__label", "error_code", "cancelled_by"):
        found |= Q(**{f"{field}__icontains": word})
    if len(word) <= SHORT_ID:
        found |= Q(session_id__startswith=word)
    return found | Q(Exists(SessionHop.objects.filter(session=OuterRef("pk"), node_name__icontains=word)))
