"""Ends sessions for an operator: their rows say so, and the process that runs each sees it with its next news."""

from __future__ import annotations

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from tracker.errors import ApiError
from tracker.models import ChatSession

CODE = "cancelled"


def cancel(sessions: QuerySet[ChatSession], who: str) -> list[str]:
    """The names of those that end now; one that has ended, is lost or was cancelled before isn't among them."""
    running = ChatSession.objects.running(timezone.now()).filter(cancelled_by="")
    with transaction.atomic():
        found = list(running.filter(pk__in=sessions.order_by().values("pk")).select_for_update().order_by("pk"))
        running.filter(pk__in=[session.pk for session in found]).update(cancelled_by=who[:150] or "somebody")
    return [str(session) for session in found]


def by_operator() -> ApiError:
    """What the client of one is told."""
    return ApiError(403, "An operator of this site ended this chat.", code=CODE)
