from __future__ import annotations

import pytest

from tracker.errors import ApiError
from tracker.limits import (
    MAX_CONCURRENT,
    REQUESTS_PER_MINUTE,
    TOKENS_PER_DAY,
    TOKENS_PER_MINUTE,
    Standing,
    Wanted,
    check_size,
    headers,
    refusal,
    wait_s,
)

WANTED = Wanted(prompt_tokens=40, answer_tokens=60)


def test_room_comes_when_enough_has_left() -> None:
    held = [(5.0, 10), (9.0, 1), (20.0, 30)]
    assert [wait_s(held, lacks) for lacks in (1, 10, 11, 12, 41)] == [5.0, 5.0, 9.0, 20.0, 20.0]
    assert wait_s(held, 42) is None
    assert wait_s([(-0.1, 1)], 1) == 0


def test_a_request_is_one_request_and_all_its_tokens() -> None:
    assert [WANTED.of(limit) for limit in (REQUESTS_PER_MINUTE, MAX_CONCURRENT)] == [1, 1]
    assert [WANTED.of(limit) for limit in (TOKENS_PER_MINUTE, TOKENS_PER_DAY)] == [100, 100]


def test_what_exactly_fits_fits() -> None:
    assert [Standing(TOKENS_PER_MINUTE, 500, used, 0).lacks(WANTED) for used in (400, 401, 600)] == [0, 1, 200]


def test_a_refusal_says_what_is_used_what_was_asked_and_when_to_come_back() -> None:
    standing = Standing(TOKENS_PER_MINUTE, 500, 450, 59.2)
    error = refusal(standing, WANTED, 16.1, [standing])
    assert (error.status, error.code, error.headers["Retry-After"]) == (429, "rate_limit_exceeded", "17")
    assert error.message == (
        "Rate limit reached: this API key has 500 tokens per minute, 450 of them are used or reserved, and this "
        "request takes 100: about 40 for its prompt and 60 for its answer (max_tokens, times n). Try again in 17 s."
    )
    error = refusal(Standing(REQUESTS_PER_MINUTE, 3, 3, 9), WANTED, 0.0, [])
    assert error.message == (
        "Rate limit reached: this API key has 3 requests per minute, 3 of them are used, and this request takes 1. "
        "Try again in 1 s."
    )


def test_one_is_told_as_one_and_the_parameter_as_it_was_sent() -> None:
    error = refusal(Standing(MAX_CONCURRENT, 1, 1, 9), WANTED, 1.0, [])
    assert "this API key has 1 request at the same time, 1 of them is used" in error.message
    with pytest.raises(ApiError) as refused:
        check_size([Standing(TOKENS_PER_DAY, 99, 0, 0)], Wanted(40, 60, "max_completion_tokens"))
    assert refused.value.param == "max_completion_tokens"
    assert "(max_completion_tokens, times n)" in refused.value.message


@pytest.mark.parametrize(
    ("standing", "said", "param"),
    [
        (
            Standing(TOKENS_PER_DAY, 99, 0, 0),
            "has 99 tokens per day .UTC. in all. Ask for a shorter answer",
            "max_tokens",
        ),
        (Standing(TOKENS_PER_MINUTE, 40, 0, 0), "has 40 tokens per minute in all. Shorten the prompt", None),
        (Standing(REQUESTS_PER_MINUTE, 0, 0, 0), "can never be answered: this API key has 0 requests per minute", None),
    ],
)
def test_what_never_fits_is_told_so_and_not_to_try_again(standing: Standing, said: str, param: str | None) -> None:
    with pytest.raises(ApiError, match=said) as error:
        check_size([standing], WANTED)
    assert (error.value.status, error.value.code, error.value.param) == (400, "above_key_limit", param)
    assert "Retry-After" not in error.value.headers


def test_headers_are_openais_and_tell_the_tighter_of_two_limits_of_tokens() -> None:
    minute, day = Standing(TOKENS_PER_MINUTE, 500, 450, 59.2), Standing(TOKENS_PER_DAY, 1000, 990, 3 * 3600 + 61)
    assert headers([minute, day, Standing(REQUESTS_PER_MINUTE, 3, 4, 360)]) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "6m0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "10",
        "x-ratelimit-reset-tokens": "3h1m1s",
    }
    assert headers([minute])["x-ratelimit-reset-tokens"] == "1m0s"
    assert headers([Standing(MAX_CONCURRENT, 3, 0, 0)]) == {}
