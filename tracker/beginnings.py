"""What a site has from its first migrate on, made again where a flush took it: the key of tickets and the groups."""

from __future__ import annotations

from typing import Any

from django.apps import apps as present_apps
from django.conf import settings

from tracker import groups


def make_missing(*, using: str, apps: Any = present_apps, **kwargs: Any) -> None:
    """After each migrate and flush. Whoever has a key or a group of their own keeps what they have."""
    from tracker.tickets import SigningKey  # reads the models, which aren't there yet when the receiver is named

    try:
        all_keys = apps.get_model("tracker", "TicketKey").objects.using(using)
        all_groups, permissions = (
            apps.get_model("auth", name).objects.using(using) for name in ("Group", "Permission")
        )
    except LookupError:  # migrated to a point before these tables
        return
    if not settings.TICKET_KEYS and not all_keys.exists():
        key = SigningKey.generate()
        all_keys.create(kid=key.kid, private=key.text)
    if not all_groups.exists():
        groups.make(all_groups, permissions)
