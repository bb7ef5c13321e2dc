"""Makes a join token and prints it: the only time it can be seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from tracker import audit, forms
from tracker.models import JoinToken


class Command(BaseCommand):
    help = "Makes a join token, with which nodes enrol, and prints it. Only its hash is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--uses", type=_uses, metavar="N", help="How many nodes may join with it (any number).")
        parser.add_argument(
            "--expires", type=forms.duration, default="24h", metavar="TIME", help="30m, 24h, 7d or never (%(default)s)."
        )
        parser.add_argument("--needs-approval", action="store_true", help="Its nodes wait for approval in the admin.")
        parser.add_argument("--label", type=forms.label, help="For whom or for what it is.")

    def handle(
        self,
        *args: Any,
        uses: int | None,
        expires: timedelta | None,
        needs_approval: bool,
        label: str | None,
        **options: Any,
    ) -> str:
        token = JoinToken(label=label or "", uses_left=uses, needs_approval=needs_approval)
        token.expires = timezone.now() + expires if expires else None
        credential = token.give_secret()
        token.save()
        audit.record(None, "add", token)
        return credential.text


def _uses(text: str) -> int:
    uses = int(text)
    if not 1 <= uses < 2**31:
        raise ValueError
    return uses


_uses.__name__ = "number of uses"  # argparse says: invalid number of uses value: '0'
