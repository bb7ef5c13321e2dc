"""What an operator of a new site does first, from the overview: gets the line to start a node with, token and all."""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest
from django.utils import timezone

from tracker import audit, joining
from tracker.dashboard.actions import Done, action
from tracker.models import AuditEntry, JoinToken

LABEL = "first nodes"


@action("tracker.add_jointoken", asks=lambda: f"Make a join token for {joining.USES} nodes?")
def first_join_token(request: HttpRequest, why: str) -> Done:
    former = _former(request)
    token = JoinToken(label=LABEL, uses_left=joining.USES, expires=timezone.now() + joining.LASTS)
    credential = token.give_secret()
    token.save()
    said = f"Copy this line: the token in it is shown only now. {joining.USES} nodes may join with it until tomorrow."
    if former:
        said += " The one that you made before is no good any more: nobody had joined with it."
    return Done(said, "add", [token], secret=joining.runnode_line(credential.text))


def _former(request: HttpRequest) -> Sequence[JoinToken]:
    """Those that the same person made so and nobody has joined with: whoever presses again has lost the line, or
    pressed twice. They are revoked."""
    entries = AuditEntry.objects.filter(actor_id=request.user.pk, action="add", kind=JoinToken._meta.verbose_name)
    made = [int(pk) for pk in entries.values_list("object_id", flat=True)[:100]]
    unused = JoinToken.objects.filter(pk__in=made, label=LABEL, last_used=None, revoked=False)
    former = [*unused]
    unused.update(revoked=True)
    for token in former:
        audit.record(request, "revoke", token, "another was made in its place")
    return former
