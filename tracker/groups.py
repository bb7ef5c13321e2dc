"""The groups of people that come with the site, and what each may do. The migration that makes them reads this."""

from __future__ import annotations

from typing import Any

SEE_DASHBOARD, USE_CHAT, CANCEL = "tracker.see_dashboard", "tracker.use_chat", "tracker.cancel_chatsession"
OPERATE = "tracker.change_node"  # approve, pause, drain, ban; placement's moves

_SEEN = (
    *("node", "shard", "nodesample", "languagemodel", "move", "contribution"),
    *("chatsession", "sessionhop", "sessionsteps", "failover"),
)
VIEWER = frozenset({"see_dashboard", *(f"view_{name}" for name in _SEEN)})
OPERATOR = VIEWER | {
    *("use_chat", "cancel_chatsession", "change_node", "change_move"),
    *("add_languagemodel", "change_languagemodel"),
    *("view_jointoken", "add_jointoken", "change_jointoken"),
    *(f"{verb}_refusedfingerprint" for verb in ("view", "add", "change", "delete")),
    *("view_apikey", "view_usage", "view_auditentry"),
}
OF_USERS = frozenset(f"{verb}_user" for verb in ("view", "add", "change", "delete")) | {"view_group"}


def is_let_in(user: Any) -> bool:
    """Into the admin: whoever operates, and staff, who then see what they have permissions for."""
    return bool(user.is_active and (user.is_staff or user.has_perm(OPERATE)))


def make(groups: Any, permissions: Any) -> None:
    """The three groups, whatever they had before. Managers are handed in: a migration has its own."""
    of_tracker = permissions.filter(content_type__app_label="tracker")
    of_users = permissions.filter(content_type__app_label="auth", codename__in=OF_USERS)
    told = {
        "viewer": list(of_tracker.filter(codename__in=VIEWER)),
        "operator": list(of_tracker.filter(codename__in=OPERATOR)),
        "admin": [*of_tracker, *of_users],
    }
    for name, allowed in told.items():
        group, _ = groups.get_or_create(name=name)
        group.permissions.set(allowed)
