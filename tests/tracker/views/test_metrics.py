from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import Settings

from relay.auth import authenticator

TOKEN = "a-token-of-the-operator"


def get(settings: Settings, public_url: str, token: str, sent: str | None) -> tuple[int, str]:
    settings.PUBLIC_URL, settings.METRICS_TOKEN = public_url, token
    headers = {} if sent is None else {"Authorization": f"Bearer {sent}"}
    answer = Client(headers=headers).get("/metrics")
    return answer.status_code, answer.content.decode()


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]"])
def test_on_ones_own_machine_it_is_open(settings: Settings, url: str) -> None:
    status, text = get(settings, url, "", None)
    assert status == 200
    assert "meshnet_relay_peers" in text
    assert "meshnet_breaker_openings_total" in text


def test_elsewhere_it_says_what_to_set(settings: Settings) -> None:
    status, text = get(settings, "https://mesh.example.org", "", None)
    assert status == 403
    assert "set METRICS_TOKEN" in text


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://mesh.example.org"])
def test_with_a_token_set_it_is_the_tokens(settings: Settings, url: str) -> None:
    assert get(settings, url, TOKEN, TOKEN)[0] == 200
    for sent in (None, "", "wrong", TOKEN + "x", "tökén"):
        status, text = get(settings, url, TOKEN, sent)
        assert (status, "METRICS_TOKEN" in text, TOKEN in text) == (401, True, False)


def test_guessing_is_slowed(settings: Settings) -> None:
    for _ in range(12):
        authenticator.throttle.failed("127.0.0.1")
    assert get(settings, "https://mesh.example.org", TOKEN, "guess")[0] == 429
    assert get(settings, "https://mesh.example.org", TOKEN, TOKEN)[0] == 200


def test_it_is_only_read(settings: Settings) -> None:
    settings.PUBLIC_URL = "http://127.0.0.1:8000"
    assert Client().post("/metrics").status_code == 405
