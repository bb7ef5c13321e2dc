from __future__ import annotations

import pytest
from django.http import HttpRequest
from django.test import RequestFactory

from tracker import gate
from tracker.errors import ApiError


def request(address: str = "203.0.113.9") -> HttpRequest:
    return RequestFactory(REMOTE_ADDR=address).get("/")


def fail(times: int, address: str = "203.0.113.9") -> None:
    for _ in range(times):
        gate.failed(request(address), "bad")


def test_a_few_bad_credentials_cost_nothing() -> None:
    fail(4)
    gate.check(request(), "bad")


def test_many_are_answered_429_with_the_time_to_come_back() -> None:
    fail(12)
    with pytest.raises(ApiError, match="Too many bad credentials") as caught:
        gate.check(request(), "another")
    assert (caught.value.status, caught.value.code, caught.value.headers["Retry-After"]) == (429, "rate_limited", "3")
    gate.check(request("203.0.113.10"), "another")
    with pytest.raises(ApiError):
        gate.check(request(), "\ud83d")


def test_a_credential_that_was_good_is_looked_up_whoever_shares_its_address() -> None:
    gate.passed("good")
    fail(12)
    gate.check(request(), "good")


def test_who_brings_nothing_has_guessed_nothing() -> None:
    for _ in range(12):
        gate.failed(request(), "")
    gate.check(request(), "bad")
    fail(12)
    gate.check(request(), "")


def test_an_ipv6_network_is_one_address() -> None:
    fail(12, "2001:db8::1")
    with pytest.raises(ApiError):
        gate.check(request("2001:db8::2"), "another")


def test_it_remembers_a_bounded_number_and_none_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_KNOWN", 2)
    for text in ("first", "second", "first", "third"):
        gate.passed(text)
    fail(12)
    gate.check(request(), "first")
    with pytest.raises(ApiError):
        gate.check(request(), "second")
    assert "first" not in repr(gate._known)
