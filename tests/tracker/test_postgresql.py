"""The database of a site with several processes: the same migrations, rules and bookkeeping as on SQLite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.utils import ConnectionHandler
from pytest_django import DjangoDbBlocker

from meshweb.databases import from_url
from tests.lab.postgres import Postgres
from tests.lab.processes import ROOT, environment, manage

ESSENTIALS = ["test_models.py", "test_chats.py", "test_auth.py", "test_ticking.py", "test_contributions.py"]
ESSENTIALS += ["test_metering.py", "test_usage.py", "test_progress.py", "test_news.py"]
ESSENTIALS += ["views/test_nodes.py", "views/test_heartbeats.py", "dashboard/test_every_page.py"]
SLOW = "wrong or strangers or version or clamped or differs or dialled or proved or endpoint"  # said once, on SQLite
SLOW += " or as_often or endless"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def database_url(server: Postgres) -> str:
    return server.url


def test_commands_run_and_end_with_nothing_to_say_of_their_pool(database_url: str, tmp_path: Path) -> None:
    env = environment(DATABASE_URL=database_url, DATA_DIR=str(tmp_path))
    manage("migrate", "--verbosity", "0", env=env)
    run = subprocess.run(
        [sys.executable, "manage.py", "createapikey", "test"], env=env, cwd=ROOT, capture_output=True, text=True
    )
    assert run.stdout.startswith("key_")
    assert run.stderr == ""
    assert not (tmp_path / "meshnet.sqlite3").exists()


def test_nodes_join_and_chats_are_kept_books_of_as_on_sqlite(database_url: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", f"not ({SLOW})"]
        + [f"tests/tracker/{name}" for name in ESSENTIALS],
        env=environment(DATABASE_URL=database_url, DATA_DIR=str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-6000:]


class Rush:
    """A process of the site that begins many chats at once (tests/tracker/burst.py)."""

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.tracker.burst", *arguments]
        self.process = subprocess.Popen(
            command, env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def said(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Rush:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_two_processes_let_in_exactly_what_a_key_allows(database_url: str, tmp_path: Path) -> None:
    env = environment(DATABASE_URL=database_url, DATA_DIR=str(tmp_path))
    with Rush(env, "prepare") as one, Rush(env) as other:
        assert (one.said(), other.said()) == ("ready", "ready")
        let_in = {}
        for key in ("key_1", "key_2", "key_3"):
            for process in (one, other):
                process.tell(key)
            let_in[key] = int(one.said()) + int(other.said())
        assert let_in == {"key_1": 5, "key_2": 7, "key_3": 4}
        one.tell("usage")
        assert int(one.said()) == 7, "no end of a request overwrote another's"


def test_a_database_that_was_restarted_costs_no_request(
    server: Postgres, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    connection = ConnectionHandler({"default": from_url(server.url, tmp_path / "none")})["default"]
    assert isinstance(connection, DatabaseWrapper)
    with django_db_blocker.unblock():
        for _ in range(2):
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            connection.close()  # back to the pool, as at the end of a request
            server.stop()
            server.start()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        connection.close()
        connection.close_pool()
