"""Which sessions this process runs, and the news of them: the sign that it is alive, without which they are lost.

A process that is killed writes no end of its sessions. Others see by their `last_news` that nobody runs them any more.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from tracker.models import ChatSession
from tracker.repeated import Repeated

PERIOD_S = 10.0
GRACE = timedelta(seconds=60)  # after its deadline a session gets no news: what still counts it here has forgotten it

_running: set[int] = set()  # keys of their rows


def begin(session_pk: int) -> None:
    _running.add(session_pk)


def end(session_pk: int) -> None:
    _running.discard(session_pk)


def give(now: datetime) -> int:
    """Renews the news of all that run here, in one UPDATE. How many there were."""
    here = _running.copy()  # chats begin and end meanwhile, on other threads
    if not here:
        return 0
    alive = ChatSession.objects.filter(pk__in=here, state=ChatSession.State.RUNNING, deadline__gt=now - GRACE)
    return alive.update(last_news=now)


giver = Repeated("news of running sessions", lambda: give(timezone.now()))
