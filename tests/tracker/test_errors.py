"""What users are told of an error: a code of the table with its status, whatever nodes and the relay call it."""

from __future__ import annotations

import pytest

from relay.wire import STATUS, Code
from tracker.errors import CODES, ApiError, of_status, told


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_of_the_table_is_told_as_it_is_with_its_own_status(code: str) -> None:
    error = told(ApiError(CODES[code].status, "why", code=code, param="x"))
    assert error.as_openai()["error"].keys() == {"message", "type", "param", "code"}
    assert (error.status, error.code, error.param, error.message) == (CODES[code].status, code, "x", "why")
    assert told(ApiError(599, "why", code=code)).status == CODES[code].status


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [
        ("bad_request", 400, "invalid_value"),
        ("rate_limited", 429, "rate_limit_exceeded"),
        ("peer_busy", 429, "busy"),
        ("deadline", 504, "deadline_exceeded"),
        ("head_silent", 504, "node_failed"),
        ("peer_gone", 502, "node_failed"),
        ("forbidden", 502, "node_failed"),
        ("internal", 500, "node_failed"),
        ("quux", 400, "invalid_value"),
        ("quux", 503, "busy"),
        (None, 500, "internal_error"),
        (None, 429, "rate_limit_exceeded"),
    ],
)
def test_codes_of_nodes_and_the_relay_are_translated(code: str | None, status: int, shown: str) -> None:
    error = told(ApiError(status, "why", code=code))
    assert (error.code, error.status) == (shown, CODES[shown].status)


@pytest.mark.parametrize("code", list(Code))
def test_no_code_of_the_wire_reaches_a_user_unless_the_table_has_it(code: Code) -> None:
    assert told(ApiError(STATUS[code], "why", code=code)).code in CODES


def test_who_should_come_back_is_told_when() -> None:
    assert told(ApiError(503, "why", code="quux")).headers["Retry-After"] == "5"
    assert told(ApiError(429, "why", headers={"Retry-After": "60"})).headers["Retry-After"] == "60"


@pytest.mark.parametrize("status", [400, 403, 404, 405, 413, 418, 500, 501, 503])
def test_an_answer_of_djangos_own_gets_the_code_that_fits(status: int) -> None:
    error = of_status(status)
    assert error.code in CODES
    assert CODES[error.code].words in error.message
