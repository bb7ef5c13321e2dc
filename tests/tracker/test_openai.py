"""T4 to T7 and T12: each parameter, right and wrong, before anything is asked of a node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracker.errors import ApiError
from tracker.openai import ChatRequest, read_chat, read_completion

USER = {"role": "user", "content": "Hello"}


def chat(**fields: Any) -> ChatRequest:
    return read_chat(json.dumps({"model": "tiny", "messages": [USER]} | fields).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        chat(**fields)
    assert error.value.status == 400
    json.dumps(error.value.as_openai(), ensure_ascii=False).encode()  # what a client sent can always be answered
    return error.value


def content(value: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": value}]


def test_whom_a_client_asks_for_is_a_text_under_either_name() -> None:
    assert chat().wanted_user == ""
    assert chat(user="me").wanted_user == "me"
    assert chat(safety_identifier="x").wanted_user == "x"
    for wrong in (7, "\ud83d", "a\0b", "x" * 513):
        assert refused(user=wrong).param == "user"
    assert refused(safety_identifier="x" * 129).param == "safety_identifier"
    assert refused(user="me", safety_identifier="me").param == "user"


def test_what_is_kept_beside_a_request_is_up_to_sixteen_texts() -> None:
    assert chat().wanted_metadata == chat(metadata=None).wanted_metadata == {}
    full = {f"{number:064}": "x" * 512 for number in range(16)}
    assert chat(metadata=full).wanted_metadata == full
    assert chat(metadata={"a": ""}).wanted_metadata == {"a": ""}
    wrong: tuple[Any, ...] = (
        full | {"a": "b"},
        {"": "a"},
        {"x" * 65: "a"},
        {"a": "x" * 513},
        {"a": 1},
        {"a": None},
        [],
        "a",
        7,
    )
    for value in (*wrong, {"a\0": "a"}, {"a": "\0"}, {"\ud83d": "a"}, {"a": "\ud83d"}):
        assert refused(metadata=value).param == "metadata"


@pytest.mark.parametrize(("value", "count"), [(None, 1), (1, 1), (4, 4), (2.0, 2)])
def test_one_to_four_choices_are_made(value: Any, count: int) -> None:
    assert chat(n=value).num_choices == count
    body = {"model": "tiny", "prompt": "a", "n": value}
    assert read_completion(json.dumps(body).encode()).num_choices == count


@pytest.mark.parametrize("value", [0, -1, 5, 1.5, "2", True, [1], {}])
def test_another_number_of_choices_is_refused(value: Any) -> None:
    assert refused(n=value).param == "n"


@pytest.mark.parametrize("value", [None, []])
def test_no_stop_is_no_stop(value: Any) -> None:
    assert chat(stop=value).for_head()["stop"] == []


def test_stops_are_a_text_or_up_to_four() -> None:
    assert chat(stop="a").for_head()["stop"] == ["a"]
    assert chat(stop=["a", "b", "c", "d"]).for_head()["stop"] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("value", ["", [""], ["a", ""], list("abcde"), [1], 5, {}, [["a"]], True, "\ud83d", ["\ud83d"]])
def test_other_stops_are_refused(value: Any) -> None:
    assert refused(stop=value).param == "stop"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, "5", 1.5, True, [], {}, float("1e400")])
def test_limits_that_are_no_positive_whole_number_are_refused(name: str, value: Any) -> None:
    if value == float("inf"):
        body = json.dumps({"model": "tiny", "messages": [USER], name: 0}).replace(f'"{name}": 0', f'"{name}": 1e400')
        with pytest.raises(ApiError) as error:
            read_chat(body.encode())
        assert error.value.param == name
    else:
        assert refused(**{name: value}).param == name


@pytest.mark.parametrize("value", [1, 10_000, 1e8, 10**30])
def test_large_limits_are_accepted(value: Any) -> None:
    assert chat(max_tokens=value).wanted_tokens == value
    assert chat(max_completion_tokens=value).wanted_tokens == value


def test_no_limit_is_no_limit_in_chat_and_sixteen_in_completions() -> None:
    assert chat().wanted_tokens is None
    assert chat(max_tokens=None).wanted_tokens is None
    assert read_completion(b'{"model": "tiny", "prompt": "a"}').wanted_tokens == 16


def test_two_limits_are_one_too_many() -> None:
    assert refused(max_tokens=5, max_completion_tokens=5).param == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"model": "x" * 201}, "model"),
        ({"model": "\ud83d"}, "model"),
        ({"meshnet": {"resume": {}}}, "meshnet.resume"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"frequency_penalty": True}, "frequency_penalty"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"presence_penalty": "1"}, "presence_penalty"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1.0": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 100.1}}, "logit_bias"),
        ({"logit_bias": {"1": None}}, "logit_bias"),
        ({"logit_bias": {"1": True}}, "logit_bias"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias"),
        ({"logit_bias": {str(number): 1 for number in range(301)}}, "logit_bias"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"meshnet": {"top_k": -1}}, "meshnet.top_k"),
        ({"meshnet": {"top_k": 1.5}}, "meshnet.top_k"),
        ({"meshnet": {"top_k": True}}, "meshnet.top_k"),
        ({"meshnet": {"min_p": 1.1}}, "meshnet.min_p"),
        ({"meshnet": {"min_p": "0"}}, "meshnet.min_p"),
        ({"meshnet": {"repetition_penalty": 0}}, "meshnet.repetition_penalty"),
        ({"meshnet": {"repetition_penalty": 10.1}}, "meshnet.repetition_penalty"),
        ({"meshnet": {"deadline_s": 0}}, "meshnet.deadline_s"),
        ({"meshnet": {"deadline_s": "9"}}, "meshnet.deadline_s"),
    ],
)
def test_wrong_values_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_sampling_goes_to_the_head_as_asked_and_with_openais_defaults() -> None:
    asked = chat(temperature=0, top_p=0.5, seed=-(2**63)).for_head()
    assert (asked["temperature"], asked["top_p"]) == (0, 0.5)
    assert (chat().for_head()["temperature"], chat().for_head()["top_p"]) == (1.0, 1.0)


def test_what_changes_the_choice_goes_to_the_head_and_what_asks_for_nothing_does_not() -> None:
    extras = {"top_k": 40.0, "min_p": 0.05, "repetition_penalty": 1.1}
    changes = {"logit_bias": {"07": -100}, "frequency_penalty": 0.5, "presence_penalty": -1}
    asked = chat(**changes, meshnet=extras, logprobs=True, top_logprobs=2).for_head()
    assert {name: asked[name] for name in ("frequency_penalty", "presence_penalty", "logit_bias")} == {
        "frequency_penalty": 0.5,
        "presence_penalty": -1,
        "logit_bias": {"7": -100},
    }
    assert [asked[name] for name in extras] == [40, 0.05, 1.1]
    assert asked["top_logprobs"] == 2

    asked = chat(frequency_penalty=None, logit_bias={}, logprobs=False, top_logprobs=0, meshnet={}).for_head()
    assert set(asked) == {"model", "temperature", "top_p", "stop", "messages"}


def test_log_probabilities_of_the_chosen_tokens_alone_may_be_asked_for() -> None:
    assert chat(logprobs=True).for_head()["top_logprobs"] == 0
    assert read_completion(b'{"model": "tiny", "prompt": "a", "logprobs": 0}').for_head()["top_logprobs"] == 0
    assert read_completion(b'{"model": "tiny", "prompt": "a", "logprobs": 5}').for_head()["top_logprobs"] == 5


@pytest.mark.parametrize("value", [6, -1, True, "1", 1.5])
def test_a_completion_tells_log_probabilities_of_at_most_five_tokens(value: Any) -> None:
    with pytest.raises(ApiError) as error:
        read_completion(json.dumps({"model": "tiny", "prompt": "a", "logprobs": value}).encode())
    assert (error.value.status, error.value.param) == (400, "logprobs")


@pytest.mark.parametrize("value", [None, [], 7, "Hello", {}, [7], [None]])
def test_messages_that_are_no_messages_are_refused(value: Any) -> None:
    param = refused(messages=value).param
    assert param
    assert param.startswith("messages")


def test_missing_messages_and_missing_models_are_named() -> None:
    with pytest.raises(ApiError) as error:
        read_chat(b'{"model": "tiny"}')
    assert (error.value.param, error.value.code) == ("messages", "missing_required_parameter")
    with pytest.raises(ApiError) as error:
        read_chat(json.dumps({"messages": [USER]}).encode())
    assert error.value.param == "model"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        7,
        {},
        [],
        ["text"],
        [{"type": "image_url", "image_url": {"url": "data:,"}}],
        [{"type": "text"}],
        [{"type": "text", "text": 7}],
        [{"type": "text", "text": ""}],
        "\ud83d",
        [{"type": "text", "text": "a\ud83d"}],
    ],
)
def test_content_that_is_no_text_is_refused(value: Any) -> None:
    param = refused(messages=[USER, *content(value)]).param
    assert param
    assert param.startswith("messages[1].content")


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert chat(messages=content(parts)).for_head()["messages"] == [USER]


@pytest.mark.parametrize("text", ["a\0b", "\ufeffa", "\u202eabc", "\n" * 1000, "👩‍👩‍👧‍👦 한국어", " "])
def test_odd_texts_go_through_unchanged(text: str) -> None:
    assert chat(messages=content(text)).for_head()["messages"][0]["content"] == text


def test_newer_and_repeated_messages_are_understood() -> None:
    repeated: dict[str, Any] = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    asked = chat(messages=[{"role": "developer", "content": "Be brief"}, USER, repeated, USER]).for_head()
    assert [message["role"] for message in asked["messages"]] == ["system", "user", "assistant", "user"]
    assert set(asked["messages"][2]) == {"role", "content"}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "name": "me"}, "messages[0].name"),
        ({"role": "user", "content": "x", "extra": 1}, "messages[0].extra"),
        ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
    ],
)
def test_messages_with_more_than_text_are_refused(message: dict[str, Any], param: str) -> None:
    assert refused(messages=[message]).param == param


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe{", b'{"a": NaN}', b"[" * 100_000, b'{"n": 1' + b"0" * 5000 + b"}"],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    for read in (read_chat, read_completion):
        with pytest.raises(ApiError) as error:
            read(body)
        assert error.value.status == 400


@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_a_prompt_is_a_text_or_a_list_of_one(prompt: Any) -> None:
    asked = read_completion(json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 3}).encode())
    assert asked.for_head()["prompt"] == "Once"
    assert asked.wanted_tokens == 3


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [1, 2], [[1]], 7, "\ud83d", [""]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError) as error:
        read_completion(json.dumps({"model": "tiny", "prompt": prompt}).encode())
    assert error.value.param == "prompt"


@pytest.mark.parametrize(("name", "value"), [("echo", True), ("best_of", 2), ("suffix", "x"), ("top_logprobs", 1)])
def test_a_completion_refuses_what_it_does_not_honour(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as error:
        read_completion(json.dumps({"model": "tiny", "prompt": "a", name: value}).encode())
    assert error.value.param == name
