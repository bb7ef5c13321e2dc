from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.prompts import PromptError
from nodes.text import Tokenizer
from tests.nodes.templates import BARE, LIST, LIST_TOKENS, PLAIN, TAGS, TURNS, tokenizer_with

HELLO = {"role": "user", "content": "hello"}
RULES = {"role": "system", "content": "Be brief."}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}}]


def call(call_id: str, arguments: str = '{"city": "Oslo"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def called(*calls: dict[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


TURN = [HELLO, called(call("call_1")), result("call_1", "rain")]


def prompt(tokenizer: Tokenizer, messages: list[dict[str, Any]], tools: Any = ()) -> str:
    return str(tokenizer.backend.decode(tokenizer.chat_prompt(messages, tools)))


def test_a_template_that_knows_functions_is_given_them() -> None:
    written = prompt(tokenizer_with(TAGS), [HELLO], TOOLS)
    assert json.dumps(TOOLS[0]) in written
    assert "You can call" not in written


def test_the_prompt_has_the_tokens_that_transformers_makes_of_it() -> None:
    tokenizer = tokenizer_with(TAGS)
    ids = tokenizer.backend.apply_chat_template([HELLO], TOOLS, add_generation_prompt=True, tokenize=True)["input_ids"]
    assert tokenizer.chat_prompt([HELLO], TOOLS) == ids
    assert ids.count(tokenizer.backend.bos_token_id) == 1


def test_the_template_of_several_that_is_for_functions_is_taken_for_them() -> None:
    tokenizer = tokenizer_with(PLAIN)
    tokenizer.backend.chat_template = {"default": PLAIN, "tool_use": LIST}
    assert tokenizer.markup.begin == "[TOOL_CALLS] ["
    assert "[AVAILABLE_TOOLS]" in prompt(tokenizer, [HELLO], TOOLS)
    assert prompt(tokenizer, [HELLO]) == prompt(tokenizer_with(PLAIN), [HELLO])


def test_calls_of_earlier_turns_are_given_with_their_arguments_read() -> None:
    written = prompt(tokenizer_with(TAGS), TURN, TOOLS)
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in written
    assert "<tool_response>\nrain\n</tool_response>" in written
    assert prompt(tokenizer_with(TAGS), TURN) in written.replace(
        f"<|im_start|>system\n{json.dumps(TOOLS[0])}\n<|im_end|>\n", ""
    )


def test_arguments_that_were_cut_off_are_given_as_they_are() -> None:
    written = prompt(tokenizer_with(TAGS), [HELLO, called(call("call_1", '{"city": "Os'))])
    assert json.dumps('{"city": "Os') in written


def test_ids_are_shortened_for_a_template_that_takes_no_others() -> None:
    written = prompt(tokenizer_with(LIST, LIST_TOKENS), TURN, TOOLS)
    call_id = written.partition('"id": "')[2][:9]
    assert f'"call_id": "{call_id}"' in written
    other = prompt(tokenizer_with(LIST, LIST_TOKENS), [HELLO, called(call("call_2")), result("call_2", "rain")], TOOLS)
    assert call_id not in other


def test_where_a_template_refuses_several_calls_the_user_is_told() -> None:
    with pytest.raises(PromptError, match="one at a time"):
        prompt(tokenizer_with(BARE), [HELLO, called(call("a"), call("b"))], TOOLS)


@pytest.mark.parametrize(("messages", "before"), [([HELLO], ""), ([RULES, HELLO], "Be brief.\n\n")])
def test_another_template_has_functions_described_in_the_system_message(messages: Any, before: str) -> None:
    written = prompt(tokenizer_with(PLAIN), messages, TOOLS)
    assert written.startswith(f"<|bos|><|im_start|>system\n{before}You can call functions.")
    assert json.dumps(TOOLS[0]["function"]) in written
    assert '<tool_call>\n{"name": "name_of_function", "arguments": {"argument": "value"}}\n</tool_call>' in written
    assert written.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")


def test_where_no_system_message_is_taken_the_users_first_has_the_functions() -> None:
    written = prompt(tokenizer_with(TURNS.replace("{% if (", "{% if message['role'] == 'system' or (")), [HELLO], TOOLS)
    assert written.startswith("<|bos|><|im_start|>user\nhello\n\nYou can call functions.")


def test_calls_and_results_become_text_where_a_template_knows_neither() -> None:
    two = [HELLO, called(call("a"), call("b"), content="Let me see."), result("a", "rain"), result("b", "sun")]
    written = prompt(tokenizer_with(TURNS), two)
    one = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert f"<|im_start|>assistant\nLet me see.\n{one}\n{one}<|im_end|>" in written
    results = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"
    assert f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n" in written


def test_a_chat_without_functions_is_written_as_ever() -> None:
    messages = [RULES, HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "x", "name": "Ann"}]
    for template in (PLAIN, TAGS, TURNS):
        tokenizer = tokenizer_with(template.replace("{% if (", "{% if false and ("))
        ids = tokenizer.backend.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]
        assert tokenizer.chat_prompt(messages) == ids
