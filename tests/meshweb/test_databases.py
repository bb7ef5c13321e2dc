from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from meshweb.databases import from_url, make_private

FILE = Path("/srv/data/meshnet.sqlite3")


def test_without_a_url_it_is_a_file_in_the_data_folder() -> None:
    database = from_url("", FILE)
    assert (database["ENGINE"], database["NAME"]) == ("django.db.backends.sqlite3", str(FILE))
    assert database["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


@pytest.mark.parametrize(
    ("url", "name"), [("sqlite:////srv/my%20mesh.sqlite3", "/srv/my mesh.sqlite3"), ("sqlite:///mesh.db", "mesh.db")]
)
def test_a_file_may_be_named(url: str, name: str) -> None:
    assert from_url(url, FILE)["NAME"] == name


def test_a_file_that_is_new_is_its_owners_alone_and_so_are_those_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "new.sqlite3"
    database = from_url("", file)
    make_private(database)
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE a (b)")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes["new.sqlite3"] == 0o600
    assert set(modes.values()) == {0o600}
    file.chmod(0o640)
    make_private(database)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640, "its owner's to say"


def test_no_file_is_made_for_another_database_or_where_none_can_be(tmp_path: Path) -> None:
    make_private(from_url("postgresql://db/mesh", tmp_path / "a.sqlite3"))
    make_private(from_url("", tmp_path / "nowhere" / "a.sqlite3"))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("postgresql://u:p@db:5433/mesh", {"USER": "u", "PASSWORD": "p", "HOST": "db", "PORT": "5433", "NAME": "mesh"}),
        ("postgres://u:p%40s%3A@[fd00::1]/m", {"PASSWORD": "p@s:", "HOST": "fd00::1", "PORT": "", "NAME": "m"}),
        ("postgresql:///mesh?host=/run/postgresql&port=5433", {"HOST": "/run/postgresql", "PORT": "5433", "USER": ""}),
    ],
)
def test_postgresql_is_read_from_its_url(url: str, fields: dict[str, str]) -> None:
    database = from_url(url, FILE)
    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert {name: database[name] for name in fields} == fields


def test_postgresql_has_a_bounded_pool_that_checks_its_connections_and_keeps_none_in_a_thread() -> None:
    database = from_url("postgresql://db/mesh?sslmode=verify-full&application_name=mine", FILE)
    options: dict[str, Any] = database["OPTIONS"]
    assert (database["CONN_MAX_AGE"], database["CONN_HEALTH_CHECKS"]) == (0, True)
    assert options["pool"]["max_size"] <= 20
    assert (options["sslmode"], options["application_name"]) == ("verify-full", "mine")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://u:hidden@db/mesh", "'mysql'"),
        ("postgresql://u:hidden@db", "no name"),
        ("postgresql://u:hidden@db:port/mesh", "can't be read"),
        ("sqlite://u:hidden@srv/mesh", "three slashes"),
        ("sqlite:///", "three slashes"),
        ("hidden", "''"),
    ],
)
def test_a_wrong_url_says_what_is_right_without_repeating_it(url: str, why: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL must be like postgresql://") as caught:
        from_url(url, FILE)
    assert why in str(caught.value)
    assert "hidden" not in str(caught.value)
