from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.completion import CompletionError, CompletionRequest
from nodes.forms import FREE

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def read(path: str = CHAT, default_seed: int = 7, **fields: Any) -> CompletionRequest:
    given = ({"messages": HELLO} if path == CHAT else {"prompt": "hello"}) | fields
    return CompletionRequest.read(path, json.dumps(given).encode(), default_seed)


def refused(path: str = CHAT, **fields: Any) -> CompletionError:
    with pytest.raises(CompletionError) as error:
        read(path, **fields)
    assert error.value.status == 400
    return error.value


def test_a_chat_has_messages_and_a_completion_a_prompt() -> None:
    chat, plain = read(), read(PLAIN)

    assert (chat.messages, chat.prompt, chat.is_chat) == (HELLO, None, True)
    assert (plain.messages, plain.prompt, plain.is_chat) == (None, "hello", False)


def test_what_isnt_asked_for_is_neutral() -> None:
    request = read(max_tokens=None, temperature=None, top_p=None, stop=None, seed=None)

    assert (request.max_tokens, request.stops) == (None, ())
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (1.0, 1.0, 7)


def test_what_is_asked_for_is_taken() -> None:
    request = read(max_tokens=5, temperature=0, top_p=0.5, stop=["a", "b"], seed=-3, user="x")

    assert (request.max_tokens, request.stops) == (5, ("a", "b"))
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.0, 0.5, -3)


def test_what_changes_the_choice_is_taken_and_a_bias_of_nothing_left_out() -> None:
    asked: dict[str, Any] = {
        "top_k": 40,
        "min_p": 0.05,
        "frequency_penalty": 0.5,
        "presence_penalty": -1,
        "repetition_penalty": 1.1,
    }
    sampling = read(**asked, logit_bias={"7": -100, "8": 0, "9": 1.23456}, top_logprobs=2).sampling

    assert {name: getattr(sampling, name) for name in asked} == asked
    assert sampling.logit_bias == ((7, -100), (9, 1.235))
    assert sampling.top_logprobs == 2


CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
TOOLS = [{"type": "function", "function": {"name": "now"}}]


def test_calls_and_their_results_are_taken_as_they_are() -> None:
    called = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "noon"}
    assert read(messages=[*HELLO, called, result]).messages == [*HELLO, called, result]


def test_the_form_of_a_chats_answer_is_taken_and_a_completion_has_none() -> None:
    asked: dict[str, Any] = {"tools": TOOLS, "response_format": {"type": "json_object"}}
    form = read(**asked).form
    assert form.tools
    assert (form.tools.functions[0].name, form.schema) == ("now", {"type": "object"})
    assert read(PLAIN, **asked).form == FREE
    assert read().form == FREE


def test_one_stop_string_may_come_alone() -> None:
    assert read(stop="end").stops == ("end",)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("messages", None),
        ("messages", []),
        ("messages", 7),
        ("messages[0]", ["x"]),
        ("messages[0].content", [{"role": "user", "content": None}]),
        ("messages[0].content", [{"role": "user"}]),
        ("messages[0].role", [{"content": "a"}]),
        ("messages[0].content", [{"role": "user", "content": "\ud83d"}]),
        ("messages[0].tool_call_id", [{"role": "tool", "content": "a"}]),
        ("messages[0].tool_calls", [{"role": "assistant", "content": "", "tool_calls": 7}]),
        ("messages[0].tool_calls[0]", [{"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}]),
        ("messages[0].tool_calls[0].id", [{"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}]),
        (
            "messages[0].tool_calls[0].function.arguments",
            [{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "b"}}]}],
        ),
        ("response_format", {"type": "xml"}),
        ("tools", "none"),
        ("tool_choice", "required"),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2),
        ("frequency_penalty", 3),
        ("presence_penalty", "1"),
        ("repetition_penalty", 0),
        ("logit_bias", [1]),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"1": "a"}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {str(number): 1 for number in range(301)}),
        ("top_logprobs", 21),
        ("seed", 2**63),
        ("seed", 1.0),
        ("stop", 7),
        ("stop", [""]),
        ("stop", ["a", 7]),
        ("stop", ["a"] * 5),
    ],
)
def test_a_bad_parameter_is_named(param: str, value: Any) -> None:
    assert refused(**{param.partition("[")[0]: value}).param == param


@pytest.mark.parametrize("prompt", [None, 7, ["a"], "\udc00"])
def test_a_bad_prompt_is_named(prompt: Any) -> None:
    assert refused(PLAIN, prompt=prompt).param == "prompt"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(CompletionError):
        CompletionRequest.read(CHAT, body, 0)


def test_an_error_is_told_with_its_parameter() -> None:
    assert refused(top_p=9).body() == {
        "code": "bad_request",
        "message": "top_p must be a number from 0 to 1",
        "param": "top_p",
    }
