"""DATABASE_URL as Django's settings: SQLite for one process, PostgreSQL where there are more or it should last."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

WANTED = "DATABASE_URL must be like postgresql://user:password@host:5432/name or sqlite:////srv/meshnet.sqlite3"
MAX_CONNECTIONS = 20  # of one process; PostgreSQL allows 100 to all
WAIT_FOR_CONNECTION_S = 10


def from_url(url: str, default_file: Path) -> dict[str, Any]:
    """Raises ImproperlyConfigured, which never repeats the URL: there is a password in it."""
    if not url:
        return sqlite(str(default_file))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ImproperlyConfigured(f"{WANTED}; its host or port can't be read") from None
    if parts.scheme == "sqlite":
        path = unquote(parts.path).removeprefix("/")
        if parts.netloc or not path:
            raise ImproperlyConfigured(f"{WANTED}; a file's path follows three slashes, an absolute one has a fourth")
        return sqlite(path)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ImproperlyConfigured(f"{WANTED}; its scheme is {parts.scheme!r}")
    name = unquote(parts.path).removeprefix("/")
    if not name:
        raise ImproperlyConfigured(f"{WANTED}; the database has no name")
    options = dict(parse_qsl(parts.query))  # libpq's own: sslmode, sslrootcert, host as a socket's folder…
    return postgresql(
        NAME=name,
        USER=unquote(parts.username or ""),
        PASSWORD=unquote(parts.password or ""),
        HOST=options.pop("host", "") or unquote(parts.hostname or ""),
        PORT=str(port or options.pop("port", "")),
        options=options,
    )


def sqlite(file: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": file,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def make_private(database: dict[str, Any]) -> None:
    """An SQLite file that isn't there yet, for its owner alone: there are keys in it. SQLite itself would make it as
    readable as any, and gives the files beside it the same mode. One that is there keeps what its owner gave it."""
    if database["ENGINE"] == "django.db.backends.sqlite3" and database["NAME"] != ":memory:":
        with contextlib.suppress(OSError):  # it is there, or can't be made: whoever connects is told why
            os.close(os.open(database["NAME"], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def postgresql(*, options: dict[str, str], **fields: str) -> dict[str, Any]:
    """Connections come from a pool and go back at the end of each piece of work.

    Under ASGI every request has a thread of its own and CONN_MAX_AGE would leave its connection behind in it. The
    pool checks a connection before it gives it out, so a database that was restarted costs no request.
    """
    pool = {"min_size": 1, "max_size": MAX_CONNECTIONS, "timeout": WAIT_FOR_CONNECTION_S}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **fields,
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"connect_timeout": "5", "application_name": "meshnet", **options, "pool": pool},
    }
