"""What may cross the relay, and what stays behind."""

from __future__ import annotations

import pytest

from relay import envelope, served, wire
from relay.wire import Code, WireError


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/forward"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/health")],
)
def test_these_are_served(method: str, path: str) -> None:
    assert served.check_served(method, path) is None


def test_a_session_is_deleted_by_its_id() -> None:
    assert served.check_served("DELETE", "/sessions/" + "0a" * 16) == "0a" * 16


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/../admin"),
        ("POST", "//evil"),
        ("POST", "/%2e%2e/x"),
        ("GET", "http://169.254.169.254/"),
        ("POST", "/forward?x=1#@h"),
        ("POST", "/forward/"),
        ("POST", "/forward\n"),
        ("GET", "/forward"),
        ("post", "/forward"),
        ("CONNECT", "/forward"),
        ("TRACE", "/health"),
        ("DELETE", "/sessions/" + "0A" * 16),
        ("DELETE", "/sessions/" + "0a" * 16 + "\n"),
        ("GET", "/sessions/" + "0a" * 16),
        ("POST", "/\ud83d"),
    ],
)
def test_nothing_else_is_served(method: str, path: str) -> None:
    with pytest.raises(WireError, match="is not served") as caught:
        served.check_served(method, path)
    assert caught.value.code is Code.FORBIDDEN
    assert envelope.encode(wire.error_response("1", caught.value.code, caught.value.message)).isascii()


def test_headers_of_one_connection_of_users_and_of_proxies_stay_behind() -> None:
    cross = {"x-meshnet-shape": "1", "content-type": "x", "accept": "y"}
    stay = (
        "connection host cookie set-cookie authorization content-length transfer-encoding upgrade te keep-alive trailer"
    )
    stay += " x-forwarded-for x-forwarded-host forwarded x-real-ip proxy-authorization"
    assert served.crossing(cross | dict.fromkeys(stay.split(), "z")) == cross
