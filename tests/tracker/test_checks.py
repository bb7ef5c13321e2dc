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
