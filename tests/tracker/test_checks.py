from __future__ import annotations

import pytest
from pytest_django import Settings

from tracker import checks
from tracker.tickets import SigningKey


def ids(settings: Settings) -> list[str | None]:
    return [problem.id for problem in (*checks.check_ticket_keys(None), *checks.check_public_url(None))]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost", "http://[::1]:8000", "https://x.org"])
def test_a_site_as_it_should_be_has_no_problems(settings: Settings, url: str) -> None:
    settings.PUBLIC_URL, settings.TICKET_KEYS = url, [SigningKey.generate().text]
    settings.API_KEYS_REQUIRED = True
    assert ids(settings) == []


def test_plain_http_beyond_this_machine_is_warned_of(settings: Settings) -> None:
    settings.PUBLIC_URL = "http://mesh.example.org"
    assert ids(settings) == ["tracker.W001"]


def test_a_public_site_without_keys_is_warned_of(settings: Settings) -> None:
    settings.PUBLIC_URL, settings.API_KEYS_REQUIRED = "https://mesh.example.org", False
    assert ids(settings) == ["tracker.W002"]


def test_a_ticket_key_that_is_none_is_an_error_that_keeps_it_secret(settings: Settings) -> None:
    settings.TICKET_KEYS = [SigningKey.generate().text, "not-a-key"]
    [problem] = checks.check_ticket_keys(None)
    assert (problem.id, "entry 2" in problem.msg, "not-a-key" in problem.msg) == ("tracker.E001", True, False)


TWO = ["wss://a.example.org", "wss://b.example.org"]
REDIS = "redis://127.0.0.1:6379/0"


@pytest.mark.parametrize(
    ("relay_urls", "redis_url", "engine", "found"),
    [
        (TWO[:1], "", "sqlite3", []),
        (TWO[:1], "", "postgresql", []),
        (TWO, REDIS, "postgresql", []),
        (TWO, "", "postgresql", ["tracker.W003"]),
        (TWO[:1], REDIS, "sqlite3", ["tracker.E002"]),
        (TWO, "", "sqlite3", ["tracker.E002", "tracker.W003"]),
    ],
)
def test_several_processes_need_a_database_server_and_redis(
    relay_urls: list[str], redis_url: str, engine: str, found: list[str]
) -> None:
    problems = checks.problems_of_several(relay_urls, redis_url, f"django.db.backends.{engine}")
    assert [problem.id for problem in problems] == found
    assert all("Set " in (problem.hint or "") for problem in problems)


def test_the_settings_of_this_process_are_checked(settings: Settings) -> None:
    settings.RELAY_URLS, settings.REDIS_URL = TWO, REDIS
    assert [problem.id for problem in checks.check_processes(None)] == ["tracker.E002"]
