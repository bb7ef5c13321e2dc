"""Older sessions of a crowd: copies of newer ones, made by the database, which takes a tenth of the time."""

from __future__ import annotations

from datetime import timedelta

from django.db import connection, models
from django.db.models import F

from tracker.models import ChatSession, Failover, SessionHop

TIMES = ("started", "deadline", "last_news", "ended")
# Session ids end in zeros: a copy's last two digits say which copy it is, and lead back to what it is one of.
_NEW_ID = "substr(old.session_id, 1, 30) || %s"


def copy(first_pk: int, last_pk: int, number: int, earlier: timedelta) -> None:
    """The sessions from one row to another once more, with their hops and failovers; its number is 255 at most."""
    mark = f"{number:02x}"
    new = {_quoted("session_id"): _NEW_ID, _quoted("completion_id"): "old.completion_id || '-' || %s"}
    columns = _columns(ChatSession)
    _run(
        f"INSERT INTO {_table(ChatSession)} ({', '.join(columns)}) "
        f"SELECT {', '.join(new.get(column, f'old.{column}') for column in columns)} "
        f"FROM {_table(ChatSession)} old WHERE old.id BETWEEN %s AND %s ORDER BY old.id",
        [*(mark for column in columns if column in new), first_pk, last_pk],
    )
    for of in (SessionHop, Failover):
        columns = [column for column in _columns(of) if column != _quoted("session_id")]
        _run(
            f"INSERT INTO {_table(of)} (session_id, {', '.join(columns)}) "
            f"SELECT new.id, {', '.join(f'part.{column}' for column in columns)} FROM {_table(of)} part "
            f"JOIN {_table(ChatSession)} old ON part.session_id = old.id "
            f"JOIN {_table(ChatSession)} new ON new.session_id = {_NEW_ID} WHERE old.id BETWEEN %s AND %s",
            [mark, first_pk, last_pk],
        )
    copies = ChatSession.objects.filter(pk__gt=last_pk, completion_id__endswith=f"-{mark}")
    copies.update(**{name: F(name) - earlier for name in TIMES})


def _table(of: type[models.Model]) -> str:
    return of._meta.db_table


def _columns(of: type[models.Model]) -> list[str]:
    return [_quoted(str(field.column)) for field in of._meta.concrete_fields if not field.primary_key]


def _quoted(column: str) -> str:
    return connection.ops.quote_name(column)


def _run(statement: str, values: list[str | int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
