"""Writes down what operators do: who, what, to whom, why. Whoever changes something for an operator calls this."""

from __future__ import annotations

import logging
from typing import Any

from django.db.models import Model
from django.http import HttpRequest

from tracker.models import AuditEntry
from tracker.words import one_line

logger = logging.getLogger(__name__)

COMMAND_LINE = "command line"


def who(request: HttpRequest | None) -> str:
    """Without a request it was a command on the site's machine."""
    user = getattr(request, "user", None)
    return str(user) if user is not None and user.is_authenticated else COMMAND_LINE


def record(request: HttpRequest | None, action: str, target: Model, reason: str = "", **details: Any) -> AuditEntry:
    """`details`: of what changed, as JSON; never a secret."""
    user = getattr(request, "user", None)
    actor = user if user is not None and user.is_authenticated else None
    reason = one_line(reason)
    entry = AuditEntry.objects.create(
        actor=actor,
        actor_name=who(request)[:150],
        action=action[:60],
        kind=str(target._meta.verbose_name)[:60],
        object_id=str(target.pk or "")[:64],
        target=one_line(str(target))[:200],
        reason=reason[:300],
        details=details,
        address=request.META.get("REMOTE_ADDR") or None if request else None,
    )
    level = logging.INFO if request else logging.DEBUG  # whoever ran a command sees what it did
    logger.log(
        level, "%s: %s %s %s%s", entry.actor_name, action, entry.kind, entry.target, f" ({reason})" if reason else ""
    )
    return entry
