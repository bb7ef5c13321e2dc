"""Lists the API keys with their limits and what they have used, or revokes one."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from tracker import audit, usage
from tracker.models import ApiKey
from tracker.words import counted

DAYS = 30


class Command(BaseCommand):
    help = f"Lists the API keys, with what each has used in the last {DAYS} days, or revokes one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--revoke", metavar="KEY_ID", help="The part before the dot of a key that shall open nothing."
        )

    def handle(self, *args: Any, revoke: str | None, **options: Any) -> str:
        if revoke is not None:
            return _revoked(revoke)
        return (
            "\n".join(_line(key) for key in ApiKey.objects.prefetch_related("allowed_models")) or "There is no API key."
        )


def _revoked(key_id: str) -> str:
    """Raises CommandError."""
    key_id = key_id.partition(".")[0]
    key = ApiKey.objects.filter(key_id=key_id).first()
    if key is None:
        raise CommandError(f"There is no API key {key_id!r}; `manage.py apikeys` lists them.")
    ApiKey.objects.filter(pk=key.pk).update(revoked=True)
    audit.record(None, "revoke", key)
    return f"Revoked {key_id}: it opens nothing any more. What runs with it ends as it would have."


def _line(key: ApiKey) -> str:
    now = timezone.now()
    used = usage.totals(key.usage.filter(day__gte=usage.since(now, DAYS)))
    models = ", ".join(model.name for model in key.allowed_models.all()) or "all"
    told = [key.refusal(now) or "good", f"limits: {key.limits_in_words()}", f"models: {models}"]
    told.append(f"used: {counted(used['requests'], 'request')}, {counted(used['total_tokens'], 'token')}")
    return f"{key.key_id}  {key.label or '(no label)'}: {'; '.join(told)}"
