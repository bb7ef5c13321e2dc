"""Which sessions this process runs, and the news of them: the sign that it is alive, without which they are lost.

A process that is killed writes no end of its sessions. Others see by their `last_news` that nobody runs them any more.
With the sign goes what is known of them by then, for those who look on; and back comes who wants one to end.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from tracker import progress
from tracker.answers import Answer
from tracker.models import ChatSession
from tracker.repeated import Repeated

PERIOD_S = 2.0
GRACE = timedelta(seconds=60)  # after its deadline a session gets no news: what still counts it here has forgotten it


@dataclass(slots=True)
class Running:
    """A chat that runs here: what its coroutine leaves for the thread that writes, and the other way round."""

    answer: Answer | None = None  # None until its head is asked
    ttft_ms: float | None = None
    resume_ms: dict[int, float] = field(default_factory=dict)  # by epoch: from the loss of a head to the next token
    cancelled_by: str = ""  # who wants it to end
    written: progress.Known | None = None  # of it, so far
    all_written: float = 0.0  # when that was all that was known, in seconds since 1970

    @property
    def is_cancelled(self) -> bool:
        return bool(self.cancelled_by)

    def known(self, now: datetime) -> progress.Known | None:
        """None before its head has told anything."""
        answer = self.answer
        if answer is None or not answer.prompt_ids:
            return None
        num_tokens, resumed = len(answer.ids), tuple(self.resume_ms.items())
        is_more = self.written is None or num_tokens > self.written.completion_tokens
        last_token = now if self.written is None or is_more else self.written.last_token
        return progress.Known(len(answer.prompt_ids), num_tokens, self.ttft_ms, resumed, answer.progress, last_token)


_running: dict[int, Running] = {}  # by the keys of their rows


def begin(session_pk: int) -> None:
    _running[session_pk] = Running()


def end(session_pk: int) -> None:
    _running.pop(session_pk, None)


def of(session_pk: int) -> Running:
    """Of one that has ended, something to write on that nobody reads."""
    return _running.get(session_pk) or Running()


def give(now: datetime) -> int:
    """Renews the news of all that run here, in a few statements however many they are. How many there were."""
    here = _running.copy()  # chats begin and end meanwhile, on other threads
    if not here:
        return 0
    with transaction.atomic():
        alive = _lock(here, now)
        for session_pk, cancelled_by in alive.items():
            here[session_pk].cancelled_by = cancelled_by
        given = ChatSession.objects.filter(pk__in=alive).update(last_news=now)
        in_turn = sorted(alive, key=lambda pk: here[pk].all_written)
        known = {pk: one for pk in in_turn if (one := here[pk].known(now)) and one != here[pk].written}
        written = progress.write({pk: (one, here[pk].written) for pk, one in known.items()})
    for pk, one in written.items():
        if one == known[pk]:
            here[pk].all_written = now.timestamp()
        here[pk].written = one
    return given


def _lock(session_pks: Collection[int], now: datetime) -> dict[int, str]:
    """Those that nobody has ended, and who wants them to end. Locked: no figure is written after the last."""
    running = ChatSession.objects.filter(pk__in=session_pks, state=ChatSession.State.RUNNING, deadline__gt=now - GRACE)
    return dict(running.select_for_update().order_by("pk").values_list("pk", "cancelled_by"))


giver = Repeated("news of running sessions", lambda: give(timezone.now()))
