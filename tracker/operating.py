"""What operators do with nodes and sessions, from whatever page: to whom, to whom not and why, all written down.

Each action takes many rows. Its request says who acts; without one it was a command on the site's machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from relay.auth import forget
from tracker import accusations, audit, bans, cancelling
from tracker.models import ChatSession, Node

MAX_NAMES = 20  # in one sentence
Nodes = QuerySet[Node]
Details = dict[str, Any]  # of the change, for the audit log
Then = Callable[[int], str]  # what follows, in sentences about so many nodes
Change = Callable[[Node], Details | None]


class NotDone(Exception):
    """Nothing is to be done to this node, or nothing can be; why, in words that follow its name."""


@dataclass(frozen=True, slots=True)
class Done:
    did: str  # "Paused"
    names: tuple[str, ...]
    then: str  # what follows from it, in sentences
    refused: tuple[str, ...] = ()  # sentences: to whom it wasn't done, and why

    def __str__(self) -> str:
        return f"{self.did}: {shortened(self.names)}. {self.then}" if self.names else ""


def shortened(names: Sequence[str]) -> str:
    """As many of them as can be read."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _then(one: str, several: str) -> Then:
    return lambda number: one if number == 1 else several


def approve(request: HttpRequest | None, nodes: Nodes, reason: str = "") -> Done:
    then = _then("It may connect to the relay now.", "They may connect to the relay now.")
    return _each(request, "approve", nodes, reason, _approve, "Approved", then)


def pause(request: HttpRequest | None, nodes: Nodes, reason: str = "") -> Done:
    then = _then("New sessions go elsewhere; its own finish.", "New sessions go elsewhere; theirs finish.")
    return _each(request, "pause", nodes, reason, partial(_give, duty=Node.Duty.PAUSED), "Paused", then)


def drain(request: HttpRequest | None, nodes: Nodes, reason: str = "") -> Done:
    move = "move to nodes with the same layers, or finish where there are none."
    then = _then(f"New sessions go elsewhere; its own {move}", f"New sessions go elsewhere; theirs {move}")
    return _each(request, "drain", nodes, reason, partial(_give, duty=Node.Duty.DRAINING), "Draining", then)


def resume(request: HttpRequest | None, nodes: Nodes, reason: str = "") -> Done:
    then = _then("It gets sessions again.", "They get sessions again.")
    return _each(request, "resume", nodes, reason, partial(_give, duty=Node.Duty.WORKS), "Resumed", then)


def use_again(request: HttpRequest | None, nodes: Nodes, reason: str = "") -> Done:
    forgotten = "What failed before is forgotten."
    then = _then(forgotten, forgotten)
    return _each(request, "use again", nodes, reason, _use_again, "Not left out any more", then)


def ban(request: HttpRequest | None, nodes: Nodes, reason: str, lasts: timedelta | None) -> Done:
    """`lasts`: None until somebody lifts it. Without a reason nobody is banned: the node's owner reads it."""
    if not reason.strip():
        return Done("Banned", (), "", ("Nobody was banned: say why. The owners of the nodes read it.",))
    until = bans.end_of(lasts, timezone.now())
    then = _then(
        f"It is disconnected, and kept out {_until(until)}. Sessions through it go on elsewhere.",
        f"They are disconnected, and kept out {_until(until)}. Sessions through them go on elsewhere.",
    )
    return _each(request, "ban", nodes, reason, partial(_ban, until=until, reason=reason), "Banned", then, _shut_out)


def lift_ban(request: HttpRequest | None, nodes: Nodes, reason: str = "") -> Done:
    then = _then(
        "It comes back by itself, within a minute or so.", "They come back by themselves, within a minute or so."
    )
    return _each(request, "lift ban", nodes, reason, _lift_ban, "No longer banned", then)


def rotate_key(request: HttpRequest | None, nodes: Nodes, reason: str = "") -> Done:
    good = "with its next heartbeat; the present one is good until the new one is used."
    then = _then(f"It is handed over {good}", f"Each gets its own {good}")
    return _each(request, "rotate key", nodes, reason, _rotate_key, "About to get a new key", then)


def revoke(request: HttpRequest | None, nodes: Nodes, reason: str = "") -> Done:
    then = _then(
        "It is disconnected, and its key opens nothing any more.",
        "They are disconnected, and their keys open nothing any more.",
    )
    return _each(request, "revoke", nodes, reason, _revoke, "Revoked", then, _shut_out)


ACTIONS: dict[str, Callable[[HttpRequest | None, Nodes, str], Done]] = {  # by name; beside them there is `ban`
    "approve": approve,
    "pause": pause,
    "drain": drain,
    "resume": resume,
    "use_again": use_again,
    "lift_ban": lift_ban,
    "rotate_key": rotate_key,
    "revoke": revoke,
}


def cancel(request: HttpRequest | None, sessions: QuerySet[ChatSession], reason: str = "") -> Done:
    """Those that run; each ends when the process that runs it hears of it, within seconds."""
    chosen = list(sessions.order_by().values_list("pk", flat=True))
    rows = {str(row): row for row in ChatSession.objects.running(timezone.now()).filter(pk__in=chosen)}
    names = cancelling.cancel(ChatSession.objects.filter(pk__in=chosen), audit.who(request))
    for name in names:
        if name in rows:
            audit.record(request, "cancel", rows[name], reason)
    left = len(chosen) - len(names)
    were = ["1 session had ended, or was about to, already."] if left == 1 else []
    if left > 1:
        were = [f"{left} sessions had ended, or were about to, already."]
    then = (
        "It ends within seconds; its client is told."
        if len(names) == 1
        else "Each ends within seconds; its client is told."
    )
    return Done("Cancelled", tuple(names), then, tuple(were))


def _each(
    request: HttpRequest | None,
    action: str,
    nodes: Nodes,
    reason: str,
    change: Change,
    did: str,
    then: Then,
    afterwards: Callable[[Node], None] | None = None,
) -> Done:
    """`afterwards`: what others are told once the rows say it."""
    changed: list[Node] = []
    refused: list[str] = []
    with transaction.atomic():
        for node in nodes.select_related("model"):
            try:
                details = change(node)
            except NotDone as why:
                refused.append(f"Node {node.name} {why}.")
                continue
            audit.record(request, action, node, reason, **(details or {}))
            changed.append(node)
    if afterwards:
        for node in changed:
            afterwards(node)
    return Done(did, tuple(node.name for node in changed), then(len(changed)), tuple(refused))


def _approve(node: Node) -> None:
    if node.status == Node.Status.APPROVED:
        raise NotDone("is approved already")
    if node.status == Node.Status.REVOKED:
        raise NotDone("is revoked for good: with a join token it comes as a new one")
    try:
        node.approve()
    except ValidationError as error:
        raise NotDone(f"can't be approved: {error.messages[0]}") from None


def _give(node: Node, duty: Node.Duty) -> Details:
    """It hears of it with its next heartbeat."""
    if node.duty == duty:
        raise NotDone({"works": "works already", "paused": "is paused already"}.get(duty, "is being drained already"))
    Node.objects.filter(pk=node.pk).update(duty=duty)
    return {"before": node.duty}


def _use_again(node: Node) -> Details:
    if not (node.breaker_openings or node.breaker_until):
        raise NotDone("wasn't left out")
    accusations.forgive(Node.objects.filter(pk=node.pk), timezone.now())
    return {"had": node.breaker_reason}


def _ban(node: Node, until: datetime, reason: str) -> Details:
    Node.objects.filter(pk=node.pk).update(banned_until=until, ban_reason=reason[:300], lease_until=None)
    node.banned_until, node.ban_reason = until, reason[:300]
    return {"until": _until(until)}


def _lift_ban(node: Node) -> Details:
    if (was := bans.in_words(node.banned_until, node.ban_reason, timezone.now())) is None:
        raise NotDone("isn't banned")
    Node.objects.filter(pk=node.pk).update(banned_until=None, ban_reason="")
    return {"was": was}


def _rotate_key(node: Node) -> Details:
    if node.status == Node.Status.REVOKED:
        raise NotDone("is revoked: no key of it opens anything")
    if node.rotates_key:
        raise NotDone("is about to get a new key already")
    Node.objects.filter(pk=node.pk).update(rotates_key=True)
    return {"key": node.key_id}


def _revoke(node: Node) -> None:
    if node.status == Node.Status.REVOKED:
        raise NotDone("is revoked already")
    node.revoke()


def _shut_out(node: Node) -> None:
    words = bans.in_words(node.banned_until, node.ban_reason, timezone.now())
    forget(node.peer_id, f"this node is {words}" if words else "this node's key was revoked by the operator")


def _until(until: datetime) -> str:
    return "until somebody lifts it" if until >= bans.FOR_GOOD else f"until {until:%Y-%m-%d %H:%M} UTC"
