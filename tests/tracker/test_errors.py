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


@pytest.mark.parametrize(
    ("message", "waited"),
    [
        (
            "the request's time is over: pipeline error: layers 15–29 on node beta: tunnel: silent; relay: no answer",
            ": it waited for layers 15–29 on node beta",
        ),
        ("the request's time is over: pipeline error: layer 5 on node a b: cut", ": it waited for layer 5 on node a b"),
        ("the answer wasn't finished by the request's deadline", ""),
    ],
)
def test_who_had_too_little_time_is_told_what_was_slow_and_what_to_do(message: str, waited: str) -> None:
    error = told(ApiError(504, message, code="deadline"))
    assert error.message.startswith(f"The answer wasn't finished in its time{waited}. Ask again")
    assert told(error) is error


def test_a_prompt_that_is_too_long_is_told_the_lengths_and_what_to_do() -> None:
    message = "the prompt has 20031 tokens; with its answer it must fit in 8192"
    error = told(ApiError(400, message, code="context_length_exceeded", param="messages"))
    assert error.message == (
        "The prompt has 20031 tokens, and the model's context has 8192 for prompt and answer. Shorten the prompt."
    )
    assert (told(error) is error, error.param) == (True, "messages")
