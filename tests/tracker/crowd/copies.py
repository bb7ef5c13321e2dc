"""Older sessions of a crowd: copies of newer ones, made by the database, which takes a tenth of the time."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection, models
from django.db.models import F

from tracker.models import ChatSession, Failover, SessionHop

TIMES = ("started", "deadline", "last_news", "ended")


def copy(first_pk: int, last_pk: int, number: int, earlier: timedelta) -> None:
    """The sessions from one row to another once more, with their hops and failovers; its number is 255 at most."""
    mark = f"{number:02x}"
    new = {  # session ids end in zeros, of which two say which copy it is
        _quoted("session_id"): "substr(session_id, 1, 30) || %s",
        _quoted("completion_id"): "completion_id || '-' || %s",
    }
    columns = _columns(ChatSession)
    _copy(ChatSession, "id", columns, new, [*(mark for column in columns if column in new), first_pk, last_pk])
    copies = ChatSession.objects.filter(pk__gt=last_pk, completion_id__endswith=f"-{mark}")
    copies.update(**{name: F(name) - earlier for name in TIMES})
    further = copies.order_by("pk").values_list("pk", flat=True)[0] - first_pk  # copies are as near together
    for of in (SessionHop, Failover):
        _copy(of, "session_id", _columns(of), {_quoted("session_id"): "session_id + %s"}, [further, first_pk, last_pk])


def _copy(of: type[models.Model], by: str, columns: list[str], new: dict[str, str], values: list[str | int]) -> None:
    told = ", ".join(new.get(column, column) for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {_table(of)} ({', '.join(columns)}) "
            f"SELECT {told} FROM {_table(of)} WHERE {by} BETWEEN %s AND %s ORDER BY id",
            values,
        )


def _table(of: type[models.Model]) -> str:
    return of._meta.db_table


def _columns(of: type[models.Model]) -> list[str]:
    return [_quoted(str(field.column)) for field in of._meta.concrete_fields if not field.primary_key]


def _quoted(column: str) -> str:
    return connection.ops.quote_name(column)
