from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.utils import OperationalError
from django.utils import timezone

from tracker import readiness
from tracker.models import Lease

pytestmark = pytest.mark.django_db

LONG = timedelta(hours=1)


def tick(until_s: float) -> None:
    Lease.objects.create(name="tick", holder="a", until=timezone.now() + timedelta(seconds=until_s))


def test_a_database_of_this_version_that_is_ticked_is_all_it_takes() -> None:
    tick(10)
    assert readiness.problems(timezone.now(), LONG) == {"database": None, "migrations": None, "tick": None}


def test_a_migration_that_is_missing_is_told_with_what_to_do() -> None:
    tick(10)
    last = MigrationRecorder.Migration.objects.filter(app="tracker").order_by("-name")[0]
    last.delete()
    problem = readiness.problems(timezone.now(), LONG)["migrations"]
    assert problem == "migrations of tracker are not applied; run: python manage.py migrate"


def test_a_tick_that_nobody_does_is_told_with_what_to_do() -> None:
    assert "nobody has done it yet; leave TICK on" in str(readiness.problems(timezone.now(), LONG)["tick"])
    tick(-60)
    assert "nobody has done it since 20" in str(readiness.problems(timezone.now(), LONG)["tick"])


def test_a_process_that_has_just_started_may_wait_for_its_first_tick() -> None:
    assert readiness.problems(timezone.now(), timedelta(seconds=2))["tick"] is None


def test_a_database_that_is_away_is_told_without_its_address() -> None:
    def refuse(*args: object) -> None:
        raise OperationalError("connection to 192.0.2.7 failed: password of meshnet")

    with connection.execute_wrapper(refuse):
        problems = readiness.problems(timezone.now(), LONG)
    assert "does DATABASE_URL name it?" in str(problems["database"])
    assert problems["migrations"] == problems["tick"] == readiness.NEVER_LOOKED
    assert "192.0.2.7" not in str(problems)
