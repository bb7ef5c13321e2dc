"""Rows that count something by the day, added to by many processes at once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

from django.db import IntegrityError, models, transaction
from django.db.models import F


def day_of(moment: datetime) -> date:
    """Of UTC, on which it counts."""
    return moment.astimezone(UTC).date()


def add(rows: models.Manager[Any], key: Mapping[str, Any], amounts: Mapping[str, int], **about: Any) -> None:
    """Adds to the row that `key` names, or makes it; `about` is then what it says of itself."""
    ours = rows.filter(**key)
    more = about | {name: F(name) + amount for name, amount in amounts.items()}
    if ours.update(**more):
        return
    try:
        with transaction.atomic():
            rows.create(**key, **amounts, **about)
    except IntegrityError:  # another was first
        ours.update(**more)
