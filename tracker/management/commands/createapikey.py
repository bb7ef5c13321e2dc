"""Makes an API key and prints it: the only time it can be seen."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils import timezone

from tracker import audit, forms
from tracker.limits import LIMITS
from tracker.models import ApiKey, LanguageModel


class Command(BaseCommand):
    help = "Makes an API key for a user and prints it. Only its hash is kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("label", type=forms.label, help="For whom or for what the key is.")
        parser.add_argument(
            "--model", action="append", default=[], help="May ask this model, and no other that isn't named too."
        )
        for limit in LIMITS:
            flag = f"--{limit.name.replace('_', '-')}"
            parser.add_argument(
                flag, type=forms.positive, metavar="N", help=f"At most so many {limit.words}. Left out: any number."
            )
        parser.add_argument(
            "--expires",
            type=forms.duration,
            default="never",
            metavar="TIME",
            help="30m, 24h, 7d or never (%(default)s).",
        )

    @transaction.atomic
    def handle(self, *args: Any, label: str, model: list[str], expires: timedelta | None, **options: Any) -> str:
        models = [_model(name) for name in model]
        key = ApiKey(label=label, **{limit.name: options[limit.name] for limit in LIMITS})
        key.expires = timezone.now() + expires if expires else None
        credential = key.give_secret()
        key.save()
        key.allowed_models.set(models)
        audit.record(None, "add", key, models=[model.name for model in models])
        return credential.text


def _model(name: str) -> LanguageModel:
    """Raises CommandError."""
    found = LanguageModel.objects.filter(name=name).first()
    if found is None:
        known = ", ".join(LanguageModel.objects.values_list("name", flat=True)) or "none"
        raise CommandError(
            f"There is no model {name!r} here; there are: {known}. A model is there once a node has joined with it; "
            f"`manage.py languagemodel {name}` names it beforehand."
        )
    return found
