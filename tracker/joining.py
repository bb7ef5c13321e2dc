"""How the first node of a site comes about: what is done already, what is next, and the exact line that starts one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q

from relay import presence
from tracker.models import ApiKey, ChatSession, JoinToken, Node

MODEL = "smollm2-135m-instruct"  # small, and known to nodes by name
USES, LASTS = 10, timedelta(days=1)  # of a join token where nobody says otherwise: one that leaks is soon no good
TOKEN = "TOKEN"  # where the real one isn't known any more


def runnode_line(token: str = TOKEN, model: str = MODEL) -> str:
    """For a machine that gives some of its memory: it opens no port, and this site picks its layers. The token isn't
    among the arguments, which others on that machine may read."""
    site = f"MESHNET_JOIN_TOKEN={token} python manage.py runnode --tracker {settings.PUBLIC_URL}"
    return f"{site} --model {model} --layers auto --relay-only"


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    is_done: bool
    link: str = ""  # the name of a URL where it is done
    link_text: str = ""
    command: str = ""  # that does it, or the line to copy


def steps_left(now: datetime, *, makes_keys: bool = True) -> Sequence[Step]:
    """From nothing to the first answer; none once there was one."""
    if ChatSession.objects.filter(state=ChatSession.State.DONE).exists():
        return ()
    good = JoinToken.objects.filter(Q(expires=None) | Q(expires__gt=now), revoked=False).exclude(uses_left=0)
    nodes = Node.objects.count()
    pending = Node.objects.filter(status=Node.Status.PENDING).count()
    is_online = Node.objects.online(now, presence.present()).exists()
    can_ask = ApiKey.objects.filter(revoked=False).exists() or not settings.API_KEYS_REQUIRED
    return (
        Step(
            "Make a join token: nodes join with it.",
            nodes > 0 or good.exists(),
            *("admin:tracker_jointoken_add", "Make a join token"),
        ),
        Step("Start a node with it on each machine that gives some of its memory.", nodes > 0, command=runnode_line()),
        Step(_approving(pending), nodes > 0 and not pending, "admin:tracker_node_changelist", "See the nodes"),
        Step("See it online: it fetches its layers first.", is_online, "overview", "See the overview"),
        _key_step(can_ask, makes_keys),
    )


def _key_step(is_done: bool, makes_keys: bool) -> Step:
    if makes_keys:
        return Step("Make an API key, for programs that ask.", is_done, "admin:tracker_apikey_add", "Make an API key")
    return Step("Have an admin of this site make an API key, for programs that ask.", is_done)


def _approving(pending: int) -> str:
    if not pending:
        return "Approve it, where its join token says that somebody must."
    return f"Approve {'the node that waits' if pending == 1 else f'the {pending} nodes that wait'} for it."
