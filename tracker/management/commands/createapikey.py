"""Makes an API key and prints it: the only time it can be seen."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from tracker.models import ApiKey


class Command(BaseCommand):
    help = "Makes an API key for a user and prints it. Only its hash is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("label", help="For whom or for what the key is.")

    def handle(self, *args: Any, label: str, **options: Any) -> str:
        key = ApiKey(label=label[:100])
        credential = key.give_secret()
        key.save()
        return credential.text
