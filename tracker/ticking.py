"""The only loop on the server: ends sessions that are lost, forgets old records. What ends by time alone is computed.

Every step may be done twice, or by two processes at once: it finds only what is still to be done.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.sessions.models import Session as Login
from django.db import transaction
from django.utils import timezone

from tracker import usage
from tracker.models import AuditEntry, ChatSession, Lease
from tracker.models.sessions import LOST_AFTER
from tracker.rebalancing import Rebalancer
from tracker.repeated import Repeated
from tracker.words import counted

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
LEASE = timedelta(seconds=3 * PERIOD_S)  # of the process that does it; if it dies, another does it after that
GRACE = timedelta(seconds=15)  # for processes to give news, after nobody could
MAX_AT_ONCE = 500  # rows that are deleted in one statement: nobody waits long for the database's one writer


def end_lost(now: datetime) -> int:
    """Ends the sessions of processes that died; their nodes hear of it with their next heartbeats."""
    lost = ChatSession.objects.filter(state=ChatSession.State.RUNNING, last_news__lte=now - LOST_AFTER)
    pks = list(lost.values_list("pk", flat=True)[:MAX_AT_ONCE])
    if not pks:
        return 0
    message = f"The process of the site that ran it gave no news for {LOST_AFTER.seconds} s."
    end = {"state": ChatSession.State.FAILED, "ended": now, "error_code": "lost", "error_message": message}
    with transaction.atomic():
        ended = usage.lock(lost.filter(pk__in=pks))  # of these, who has ended or given news meanwhile isn't lost
        for session in ended:
            usage.count_end(session, _used(session) | end)
        ChatSession.objects.filter(pk__in=[session.pk for session in ended]).update(**end)
    if not ended:
        return 0
    were = "was" if len(ended) == 1 else "were"
    logger.warning("%s %s lost with the process that ran them: %s", counted(len(ended), "session"), were, _names(ended))
    return len(ended)


def _used(session: ChatSession) -> dict[str, int | None]:
    """As far as its process has told."""
    return {"prompt_tokens": session.prompt_tokens, "completion_tokens": session.completion_tokens}


def prune(now: datetime) -> int:
    """Deletes sessions that began over SESSION_KEEP_DAYS ago with their hops and failovers, some at a time."""
    old = ChatSession.objects.filter(started__lt=now - timedelta(days=settings.SESSION_KEEP_DAYS))
    pks = list(old.exclude(state=ChatSession.State.RUNNING).values_list("pk", flat=True)[:MAX_AT_ONCE])
    if not pks:
        return 0
    ChatSession.objects.filter(pk__in=pks).delete()
    logger.info(
        "deleted the records of %s older than %d days", counted(len(pks), "session"), settings.SESSION_KEEP_DAYS
    )
    return len(pks)


def forget_actions(now: datetime) -> int:
    """Deletes what operators did over AUDIT_KEEP_DAYS ago, some at a time: the only thing that deletes it."""
    old = AuditEntry.objects.filter(at__lt=now - timedelta(days=settings.AUDIT_KEEP_DAYS)).order_by()
    pks = list(old.values_list("pk", flat=True)[:MAX_AT_ONCE])
    return AuditEntry.objects.filter(pk__in=pks).delete()[0] if pks else 0


def forget_logins(now: datetime) -> int:
    """Deletes logins of the site's pages that have expired."""
    expired = Login.objects.filter(expire_date__lt=now)
    return expired.delete()[0] if expired.exists() else 0


@dataclass(frozen=True, slots=True)
class Done:
    """What one pass has done."""

    ended: int
    deleted: int
    forgotten: int  # logins
    actions: int = 0  # of operators

    def __str__(self) -> str:
        ended, deleted = counted(self.ended, "lost session"), counted(self.deleted, "old session")
        logins, actions = counted(self.forgotten, "expired login"), counted(self.actions, "old row")
        return f"Ended {ended}, deleted {deleted}, {logins} and {actions} of the audit log."


def tick(now: datetime, *, may_end: bool = True) -> Done:
    """One pass over all of it."""
    done = Done(end_lost(now) if may_end else 0, prune(now), forget_logins(now), forget_actions(now))
    rebalancer.look(now)  # last: it is the most that may fail
    return done


rebalancer = Rebalancer()


class Watch:
    """The passes of one process, which does them while it holds the lease.

    After a gap between them nobody's session is ended for a while: the database was away, for those too who had news to
    give, or this machine slept.
    """

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._last: datetime | None = None
        self._since: datetime | None = None  # passes came without a gap

    def pass_by(self, now: datetime) -> bool:
        """A pass, where it is this process's turn."""
        if not Lease.take("tick", self._holder, now, LEASE):
            self._last = None
            return False
        if self._since is None or self._last is None or not timedelta(0) <= now - self._last <= LEASE:
            self._since = now
        self._last = now
        tick(now, may_end=now - self._since >= GRACE)
        return True


def _names(sessions: list[ChatSession]) -> str:
    named = ", ".join(session.short_id for session in sessions[:10])
    return f"{named} and others" if len(sessions) > 10 else named


watch = Watch(secrets.token_hex(8))
ticker = Repeated("the tick", lambda: watch.pass_by(timezone.now()))
