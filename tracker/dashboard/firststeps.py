"""What an operator of a new site does first, from the overview: gets the line to start a node with, token and all."""

from __future__ import annotations

from datetime import timedelta

from django.http import HttpRequest
from django.utils import timezone

from tracker import joining
from tracker.dashboard.actions import Done, action
from tracker.models import JoinToken

USES, LASTS = 10, timedelta(days=1)


@action("tracker.add_jointoken", asks=lambda: f"Make a join token for {USES} nodes?")
def first_join_token(request: HttpRequest, why: str) -> Done:
    token = JoinToken(label="first nodes", uses_left=USES, expires=timezone.now() + LASTS)
    credential = token.give_secret()
    token.save()
    said = f"Copy this line: the token in it is shown only now. {USES} nodes may join with it until tomorrow."
    return Done(said, "add", [token], secret=joining.runnode_line(credential.text))
