"""What the site needs beside this process to do its work: a database of this program's version, and somebody who ticks.

Each look says what is wrong in words, and what to do; nothing when all is well. Addresses and names stay in the log:
whoever asks for /readyz may be a stranger.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import cache

from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from tracker.models import Lease

logger = logging.getLogger(__name__)

NEVER_LOOKED = "it can't be known while the database can't be used"
FIRST_TICK = timedelta(seconds=30)  # after a process has started, for it or another to do the first one


def problems(now: datetime, up_for: timedelta) -> dict[str, str | None]:
    """Of the database and what is in it. `up_for`: how long this process has run."""
    database = _database()
    if database:
        return {"database": database, "migrations": NEVER_LOOKED, "tick": NEVER_LOOKED}
    try:
        return {"database": None, "migrations": _migrations(), "tick": _tick(now, up_for)}
    except DatabaseError as error:
        return {"database": _told(error), "migrations": NEVER_LOOKED, "tick": NEVER_LOOKED}


def _database() -> str | None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except DatabaseError as error:
        return _told(error)
    return None


def _migrations() -> str | None:
    """Those of this program; a database that is already further, amid an upgrade, is well."""
    missing = _last_migrations() - set(MigrationRecorder(connection).applied_migrations())
    if not missing:
        return None
    apps = ", ".join(sorted({app for app, _ in missing}))
    return f"migrations of {apps} are not applied; run: python manage.py migrate"


@cache
def _last_migrations() -> frozenset[tuple[str, str]]:
    return frozenset(MigrationLoader(None).graph.leaf_nodes())


def _tick(now: datetime, up_for: timedelta) -> str | None:
    lease = Lease.objects.filter(name="tick").first()
    if (lease and lease.until > now) or up_for < FIRST_TICK:
        return None
    last = f"nobody has done it since {lease.until:%Y-%m-%d %H:%M:%S} UTC" if lease else "nobody has done it yet"
    return f"{last}; leave TICK on for one process at least, or run: python manage.py tick"


def _told(error: DatabaseError) -> str:
    logger.warning("not ready: the database can't be used: %s", error)
    return "it can't be used; is it up, and does DATABASE_URL name it? The site's log has the error"
