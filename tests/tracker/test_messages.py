"""Messages of calls and of tools. Those of text alone are in test_openai.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracker.errors import ApiError
from tracker.openai import read_chat

USER: dict[str, Any] = {"role": "user", "content": "How warm is it?"}
CALL: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLED: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "20"}


def for_head(*messages: Any) -> list[dict[str, Any]]:
    asked: dict[str, Any] = read_chat(json.dumps({"model": "tiny", "messages": messages}).encode()).for_head()
    return list(asked["messages"])


def refused(*messages: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        for_head(*messages)
    assert error.value.status == 400
    json.dumps(error.value.as_openai(), ensure_ascii=False).encode()
    return error.value


def test_calls_and_their_results_go_to_the_head() -> None:
    assert for_head(USER, CALLED, RESULT) == [USER, CALLED | {"content": ""}, RESULT]


def test_an_answer_of_this_api_may_be_sent_back_as_it_is() -> None:
    neutral: dict[str, Any] = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    assert for_head(USER, CALLED | neutral, RESULT)[1] == CALLED | {"content": ""}
    plain = {"role": "assistant", "content": "Warm."} | neutral | {"tool_calls": []}
    assert for_head(USER, plain, USER)[1] == {"role": "assistant", "content": "Warm."}


def test_content_may_stand_beside_calls_and_a_result_may_be_empty_or_in_parts() -> None:
    said = CALLED | {"content": "Let me see."}
    assert for_head(USER, said, RESULT | {"content": ""})[1:] == [said, RESULT | {"content": ""}]
    parts = [{"type": "text", "text": "2"}, {"type": "text", "text": "0"}]
    assert for_head(USER, CALLED, RESULT | {"content": parts})[2] == RESULT


def test_several_calls_are_answered_in_any_order() -> None:
    called = CALLED | {"tool_calls": [CALL, CALL | {"id": "call_2"}]}
    results = [RESULT | {"tool_call_id": "call_2"}, RESULT]
    assert for_head(USER, called, *results, USER)[2:4] == results


def test_arguments_that_max_tokens_cut_off_may_be_sent_back() -> None:
    cut = CALL | {"function": {"name": "weather", "arguments": '{"city": "Os'}}
    assert for_head(USER, CALLED | {"tool_calls": [cut]}, RESULT)[1]["tool_calls"] == [cut]


def test_a_result_answers_a_call_of_the_message_before_it_and_each_once() -> None:
    assert refused(USER, RESULT).param == "messages[1].tool_call_id"
    assert refused(USER, CALLED, RESULT | {"tool_call_id": "call_2"}).param == "messages[2].tool_call_id"
    assert refused(USER, CALLED, RESULT, RESULT).param == "messages[3].tool_call_id"
    error = refused(USER, CALLED, {"role": "tool", "content": "20"})
    assert (error.param, error.code) == ("messages[2].tool_call_id", "missing_required_parameter")
    error = refused(USER, CALLED | {"tool_calls": [CALL, CALL]}, RESULT)
    assert (error.param, "has two calls of the id 'call_1'" in error.message) == ("messages[1].tool_calls", True)


def test_content_that_is_no_text_is_told_what_it_may_be() -> None:
    error = refused({"role": "user", "content": 7})
    assert error.message == "messages[0].content: must be a text, or a list of text parts."


def test_every_call_is_answered_before_anyone_else_speaks() -> None:
    error = refused(USER, CALLED, USER)
    assert error.param == "messages[2].role"
    assert "call_1" in error.message
    assert refused(USER, CALLED).param == "messages"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (CALLED | {"role": "user", "content": "a"}, "tool_calls"),
        (USER | {"tool_call_id": "call_1"}, "tool_call_id"),
        (CALLED | {"tool_calls": []}, "content"),
        (CALLED | {"tool_calls": [{}]}, "tool_calls[0].id"),
        (CALLED | {"tool_calls": [CALL | {"type": "custom"}]}, "tool_calls[0].type"),
        (CALLED | {"tool_calls": [CALL | {"index": 0}]}, "tool_calls[0].index"),
        (
            CALLED | {"tool_calls": [CALL | {"function": {"name": "a b", "arguments": ""}}]},
            "tool_calls[0].function.name",
        ),
        (
            CALLED | {"tool_calls": [CALL | {"function": {"name": "a", "arguments": {}}}]},
            "tool_calls[0].function.arguments",
        ),
        (CALLED | {"tool_calls": [CALL | {"id": "\ud83d"}]}, "tool_calls[0].id"),
        (CALLED | {"tool_calls": [CALL] * 129}, "tool_calls"),
        (CALLED | {"function_call": {"name": "a", "arguments": ""}}, "function_call"),
        (RESULT | {"tool_call_id": 1}, "tool_call_id"),
        (RESULT | {"content": None}, "content"),
        (RESULT | {"name": "weather"}, "name"),
    ],
)
def test_what_is_wrong_with_a_message_is_named(message: dict[str, Any], param: str) -> None:
    before = [USER, CALLED] if message["role"] == "tool" else [USER]
    assert refused(*before, message).param == f"messages[{len(before)}].{param}"


def test_the_older_role_of_results_is_refused_with_the_newer_ones() -> None:
    for named in ({}, {"name": "weather"}):
        error = refused(USER, {"role": "function", "content": "20"} | named)
        assert (error.param, "tool_call_id" in error.message) == ("messages[1].role", True)
