from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path

import pytest
from pytest_django import Settings

from tests.lab.processes import ROOT
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


def deployment_ids(settings: Settings, **values: object) -> list[str | None]:
    for name, value in values.items():
        setattr(settings, name, value)
    return [problem.id for problem in checks.check_deployment(None)]


@pytest.fixture
def deployed(settings: Settings, tmp_path: Path) -> Settings:
    tmp_path.chmod(0o700)
    settings.PUBLIC_URL, settings.DATA_DIR, settings.METRICS_TOKEN = "https://mesh.example.org", tmp_path, "x" * 43
    settings.TRUSTED_PROXIES = [ip_network("127.0.0.1")]
    return settings


def test_a_deployment_as_it_should_be_has_no_problems(deployed: Settings) -> None:
    assert deployment_ids(deployed) == []


def test_a_site_behind_tls_that_believes_no_proxy_is_warned_of(deployed: Settings) -> None:
    assert deployment_ids(deployed, TRUSTED_PROXIES=[]) == ["tracker.W004"]
    assert deployment_ids(deployed, PUBLIC_URL="http://127.0.0.1:8000") == []


def test_a_metrics_token_that_can_be_guessed_is_warned_of(deployed: Settings) -> None:
    assert deployment_ids(deployed, METRICS_TOKEN="short") == ["tracker.W005"]
    assert deployment_ids(deployed, METRICS_TOKEN="") == []


def test_a_data_folder_that_others_read_is_warned_of(deployed: Settings, tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    assert deployment_ids(deployed) == ["tracker.W006"]


def test_each_check_stands_in_the_documentation() -> None:
    source = Path(checks.__file__).read_text()
    documented = (ROOT / "docs" / "checks.md").read_text()
    found = set(re.findall(r'id="(tracker\.[EW]\d+)"', source))
    assert found
    assert {name for name in found if f"`{name}`" not in documented} == set()
    assert set(re.findall(r"`(tracker\.[EW]\d+)`", documented)) == found


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
