"""Who a browser's session belongs to and what that one may, for sockets that stay open: asked again and again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.utils import timezone

from tracker.dashboard.pages import permissions_of


@dataclass(frozen=True, slots=True)
class Visitor:
    session_key: str  # empty for strangers
    may: frozenset[str]

    @property
    def is_stranger(self) -> bool:
        return not self.session_key


STRANGER = Visitor("", frozenset())


def visitor_of(session_key: str) -> Visitor:
    """A stranger where nobody is logged in with it, or no longer."""
    if not session_key:
        return STRANGER
    request: Any = SimpleNamespace(session=SessionStore(session_key))
    user = get_user(request)  # which checks that the password is the one the session began with
    return Visitor(session_key, permissions_of(user)) if user.is_authenticated else STRANGER


def ended(session_keys: Collection[str]) -> set[str]:
    """Of these sessions those that are over: logged out, in whatever process that was, or expired. One query."""
    alive = Session.objects.filter(session_key__in=session_keys, expire_date__gt=timezone.now())
    return set(session_keys) - set(alive.values_list("session_key", flat=True))
