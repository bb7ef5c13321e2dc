"""Tool calls as clients get them. What else an answer has is tested with the chats (test_proxy.py)."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tracker import answers
from tracker.answers import Answer, Completion
from tracker.calls import Markup
from tracker.events import Delta

HERMES = Markup("<tool_call>\n", "\n</tool_call>", "\n", "arguments")
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TEXT = f"Let me see.\n{CALL}\n" + CALL.replace("Oslo", "漢")


def answer_of(*, has_trace: bool = False) -> Answer:
    completion = Completion(answers.CHAT, "chatcmpl-1", 0, "tiny", has_trace=has_trace)
    completion.new_answer({})
    return completion.answers[-1]


def deltas(text: str, size: int = 5, reason: str = "stop", markup: Markup | None = HERMES) -> list[Delta]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    first, *rest = [Delta(piece, ids=(number,)) for number, piece in enumerate(pieces)]
    return [Delta(first.text, ids=first.ids, prompt_ids=(7,), calls=markup), *rest, Delta("", finish_reason=reason)]


def streamed(answer: Answer, told: list[Delta]) -> list[dict[str, Any]]:
    """Events as a client reads them, comments left out."""
    lines = b""
    for delta in told:
        answer.add(delta)
        lines += answer.chunk(delta)
    return [json.loads(line[6:]) for line in lines.decode().split("\n\n") if line.startswith("data: ")]


def choices(answer: Answer, told: list[Delta]) -> list[dict[str, Any]]:
    return [chunk["choices"][0] for chunk in streamed(answer, told)]


def whole(told: list[Delta]) -> dict[str, Any]:
    answer = answer_of()
    for delta in told:
        answer.add(delta)
    return answer.whole_choice()


def test_a_call_is_streamed_as_its_name_first_and_then_its_arguments() -> None:
    found = choices(answer_of(), deltas(CALL, size=12))
    first, begin, *pieces, last = [choice["delta"] for choice in found]
    assert first == {"role": "assistant", "content": None}
    [call] = begin["tool_calls"]
    assert re.fullmatch("call_[0-9a-f]{24}", call.pop("id"))
    assert call == {"index": 0, "type": "function", "function": {"name": "weather", "arguments": ""}}
    assert all(set(piece["tool_calls"][0]) == {"index", "function"} for piece in pieces)
    assert "".join(piece["tool_calls"][0]["function"]["arguments"] for piece in pieces) == '{"city": "Oslo"}'
    assert last == {}
    assert [choice["finish_reason"] for choice in found] == [None] * (len(found) - 1) + ["tool_calls"]


def test_a_call_in_one_piece_is_told_in_as_many_chunks() -> None:
    found = choices(answer_of(), [Delta(CALL, finish_reason="stop", ids=(1,), prompt_ids=(7,), calls=HERMES)])
    assert [list(choice["delta"]) for choice in found] == [["role", "content", "tool_calls"], ["tool_calls"]]
    assert [choice["finish_reason"] for choice in found] == [None, "tool_calls"]


def test_an_unstreamed_message_has_its_calls_and_no_content() -> None:
    choice = whole(deltas(CALL))
    [call] = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("size", [1, 3, 7, 500])
def test_the_official_client_puts_the_same_message_together_from_a_stream(size: int) -> None:
    state, told = ChatCompletionStreamState(), deltas(TEXT, size)
    for chunk in streamed(answer_of(), told):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    expected = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "tiny",
        "choices": [whole(told)],
    }
    message = state.get_final_completion().choices[0].message
    right = ChatCompletion.model_validate(expected).choices[0].message
    assert (message.content, message.role) == (right.content, right.role) == ("Let me see.", "assistant")
    assert [(call.id, call.type, call.function.name, call.function.arguments) for call in message.tool_calls or []] == [
        (call.id, "function", "weather", call.function.arguments)
        for call in right.tool_calls or []
        if call.type == "function"
    ]
    assert len({call.id for call in message.tool_calls or []}) == 2


def test_a_chat_with_tools_that_calls_none_is_as_any_other() -> None:
    found = choices(answer_of(), deltas("Hello there", size=6))
    assert [choice["delta"] for choice in found] == [
        {"role": "assistant", "content": "Hello"},
        {"content": " there"},
        {},
    ]
    assert found[-1]["finish_reason"] == "stop"
    choice = whole(deltas("Hello there"))
    assert choice["message"] == {"role": "assistant", "content": "Hello there", "refusal": None}


def test_without_a_markup_nothing_is_a_call() -> None:
    assert whole(deltas(CALL, markup=None))["message"]["content"] == CALL
    assert choices(answer_of(), deltas(CALL, size=500, markup=None))[0]["delta"]["content"] == CALL


@pytest.mark.parametrize("cut", range(1, len(CALL), 9))
def test_what_max_tokens_cuts_is_told_as_it_is(cut: int) -> None:
    told = deltas(CALL[:cut], reason="length")
    choice, last = whole(told), choices(answer_of(), told)[-1]
    assert choice["finish_reason"] == last["finish_reason"] == "length"
    for call in choice["message"].get("tool_calls", []):
        assert '{"city": "Oslo"}'.startswith(call["function"]["arguments"])


def test_a_stop_string_amid_a_call_is_no_end_of_calls() -> None:
    assert whole(deltas(CALL[:50]))["finish_reason"] == "stop"


def test_while_all_is_in_doubt_the_client_gets_a_sign_of_life() -> None:
    answer, told = answer_of(), deltas("<tool_call>", size=6)
    for delta in told:
        answer.add(delta)
    sent = [answer.chunk(delta) for delta in told]
    assert json.loads(sent[0][6:])["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert sent[1] == answers.KEEPALIVE
    assert json.loads(sent[2][6:])["choices"][0]["delta"] == {"content": "<tool_call>"}


def test_a_trace_tells_the_ids_of_markup_too_and_each_once() -> None:
    found = streamed(answer_of(has_trace=True), deltas(TEXT))
    told = [chunk["meshnet"]["ids"] for chunk in found if "meshnet" in chunk]
    assert list(itertools.chain(*told)) == list(range(len(told) - 1))


def test_calls_of_several_choices_have_ids_of_their_own() -> None:
    completion = Completion(answers.CHAT, "chatcmpl-1", 0, "tiny")
    for _ in range(2):
        completion.new_answer({})
    for answer in completion.answers:
        answer.add(Delta(CALL, "assistant", "stop", (1,), 0, (7,), calls=HERMES))
    messages = [answer.whole_choice()["message"] for answer in completion.answers]
    assert len({message["tool_calls"][0]["id"] for message in messages}) == 2
