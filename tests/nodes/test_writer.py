from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pytest

from nodes.completion import CompletionRequest
from nodes.forms import FREE, Form
from nodes.resume import Resume
from nodes.sampling import GREEDY, Sampled, TokenLogprobs
from nodes.text import Tokenizer
from nodes.writer import Writer
from tests.nodes.models import make_tokenizer
from tests.nodes.templates import LIST, LIST_TOKENS, tokenizer_with

FAMILY = "👩‍👩‍👧‍👦 한국어 漢字 é"
EOS = 2
PROMPT = [7, 8, 9]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(make_tokenizer(), {EOS})


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.plain_prompt(text)[1:]  # without BOS


def logprobs(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(-token_id / 8, ((token_id + 1, -0.5),))


class Written:
    """What a writer made of tokens, up to its end."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        ids: Sequence[int],
        *,
        stops: tuple[str, ...] = (),
        max_tokens: int = 1000,
        is_chat: bool = True,
        has_logprobs: bool = False,
        form: Form = FREE,
    ) -> None:
        messages = [{"role": "user", "content": "x"}] if is_chat else None
        request = CompletionRequest(is_chat, messages, None if is_chat else "x", None, GREEDY, stops, form)
        self.writer = Writer(request, PROMPT, tokenizer, max_tokens)
        self.events: list[dict[str, Any]] = []
        for token_id in ids:
            event = self.writer.push(Sampled(token_id, logprobs(token_id) if has_logprobs else None))
            self.events += [event] if event else []
            if self.writer.finish_reason:
                break

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [event["choices"][0] for event in self.events]

    @property
    def deltas(self) -> list[str]:
        return [choice["text"] if "text" in choice else choice["delta"]["content"] for choice in self.choices]

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def test_a_character_goes_out_with_the_step_that_completes_it(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, FAMILY)
    written = Written(tokenizer, [*ids, EOS])

    assert written.text == FAMILY
    assert not any("\ufffd" in delta for delta in written.deltas)
    assert len(ids) > len(FAMILY)
    assert len(written.deltas) == len(FAMILY) + 1  # each character with its last byte, and the end


def test_there_are_as_many_deltas_as_steps_when_nothing_is_held(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "hello world")
    written = Written(tokenizer, ids, max_tokens=len(ids))

    assert len(written.events) == len(ids)
    assert written.text == "hello world"
    assert written.writer.finish_reason == "length"


def test_every_id_is_told_once_with_its_position(tokenizer: Tokenizer) -> None:
    ids = [*ids_of(tokenizer, FAMILY), EOS]
    traces = [event["meshnet"] for event in Written(tokenizer, ids).events]

    assert [token_id for trace in traces for token_id in trace["ids"]] == ids
    position = len(PROMPT)
    for trace in traces:
        assert trace["position"] == position
        position += len(trace["ids"])
    assert traces[0]["prompt_ids"] == PROMPT
    assert all("prompt_ids" not in trace for trace in traces[1:])


def test_only_the_first_event_says_the_role_and_only_the_last_a_reason(tokenizer: Tokenizer) -> None:
    choices = Written(tokenizer, [*ids_of(tokenizer, "ab c"), EOS]).choices

    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_a_plain_completion_has_text_instead_of_a_delta(tokenizer: Tokenizer) -> None:
    written = Written(tokenizer, [*ids_of(tokenizer, "ab"), EOS], is_chat=False)

    assert all(set(choice) == {"index", "finish_reason", "text"} for choice in written.choices)
    assert written.text == "ab"


def test_a_stop_string_across_tokens_ends_it_and_nothing_of_it_goes_out(tokenizer: Tokenizer) -> None:
    written = Written(tokenizer, ids_of(tokenizer, "The quick brown fox jumps"), stops=("own fox",))

    assert written.text == "The quick br"
    assert written.writer.finish_reason == "stop"


@pytest.mark.parametrize("how", ["eos", "length"])
def test_what_could_have_become_a_stop_string_goes_out_at_the_end(tokenizer: Tokenizer, how: str) -> None:
    ids = ids_of(tokenizer, "The quick brown f")
    if how == "eos":
        written = Written(tokenizer, [*ids, EOS], stops=("own fox",))
    else:
        written = Written(tokenizer, ids, stops=("own fox",), max_tokens=len(ids))

    assert written.text == "The quick brown f"
    assert written.writer.finish_reason == ("stop" if how == "eos" else "length")


def test_half_a_character_at_the_end_goes_out_as_a_replacement(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "a漢")[:-1]
    written = Written(tokenizer, ids, max_tokens=len(ids))

    assert written.text.startswith("a\ufffd")
    assert written.writer.usage() == {"prompt_tokens": 3, "completion_tokens": len(ids), "total_tokens": 3 + len(ids)}


def test_the_first_token_may_be_the_last(tokenizer: Tokenizer) -> None:
    written = Written(tokenizer, [EOS])

    assert written.choices == [{"index": 0, "finish_reason": "stop", "delta": {"role": "assistant", "content": ""}}]
    assert written.events[0]["meshnet"] == {"ids": [EOS], "position": 3, "prompt_ids": PROMPT}


CALL = '[TOOL_CALLS] [{"name": "now", "arguments": {}}]'
CALLING = Form.read({"tools": [{"type": "function", "function": {"name": "now"}}]})


@pytest.fixture(scope="module")
def caller() -> Tokenizer:
    """Of a model whose calls begin with a special token."""
    return tokenizer_with(LIST, LIST_TOKENS)


def call_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.backend(text, add_special_tokens=False)["input_ids"])


def test_where_functions_may_be_called_the_first_event_says_how_calls_are_written(caller: Tokenizer) -> None:
    written = Written(caller, [*call_ids(caller, CALL), EOS], form=CALLING)

    assert [event["meshnet"].get("calls") for event in written.events] == [
        {"begin": "[TOOL_CALLS] [", "end": "]", "separator": ", ", "arguments": "arguments"},
        *[None] * (len(written.events) - 1),
    ]


def test_marks_that_are_special_tokens_are_told_and_other_special_tokens_are_not(caller: Tokenizer) -> None:
    said = "[INST]Let me see." + CALL
    assert Written(caller, [*call_ids(caller, said), EOS], form=CALLING).text == "Let me see." + CALL
    assert Written(caller, [*call_ids(caller, said), EOS]).text == "Let me see." + CALL.removeprefix("[TOOL_CALLS]")


@pytest.mark.parametrize("num_told", range(0, 12, 3))
def test_calls_that_another_head_has_begun_go_on_without_a_seam(caller: Tokenizer, num_told: int) -> None:
    ids = [*call_ids(caller, CALL), EOS]
    told = Written(caller, ids[:num_told], form=CALLING).text
    resume = Resume(tuple(PROMPT), tuple(ids[:num_told]), len(told), sha256(told.encode()).hexdigest())
    writer = Written(caller, (), form=CALLING).writer
    events = [writer.resume(resume), *(writer.push(Sampled(token_id)) for token_id in ids[num_told:])]
    written = [event for event in events if event]

    assert told + "".join(event["choices"][0]["delta"]["content"] for event in written) == CALL
    assert all("calls" not in event["meshnet"] for event in written)


def entries(written: Written) -> list[dict[str, Any]]:
    return [one for event in written.events for one in event["meshnet"].get("logprobs", [])]


def test_each_token_of_the_text_has_its_log_probability_and_offset(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, FAMILY)
    written = Written(tokenizer, [*ids, EOS], has_logprobs=True)

    told = entries(written)
    assert b"".join(bytes(one["bytes"]) for one in told) == FAMILY.encode()
    assert [one["logprob"] for one in told] == [-token_id / 8 for token_id in ids]  # and none of the end
    assert [one["offset"] for one in told[:5]] == [0, 0, 0, 0, 1]  # four bytes of the first character
    assert told[0]["top"][0]["logprob"] == -0.5
    assert [len(event["meshnet"]["ids"]) for event in written.events[:-1]] == [
        len(event["meshnet"]["logprobs"]) for event in written.events[:-1]
    ]


def test_what_a_stop_string_cuts_off_has_no_log_probability(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "The quick brown fox jumps")
    written = Written(tokenizer, ids, stops=("own fox",), has_logprobs=True)

    told = entries(written)
    assert written.text == "The quick br"
    assert max(one["offset"] for one in told) < len(written.text)
    assert b"".join(bytes(one["bytes"]) for one in told).startswith(b"The quick br")


def test_a_held_beginning_of_a_stop_string_keeps_its_log_probabilities(tokenizer: Tokenizer) -> None:
    ids = ids_of(tokenizer, "The quick brown f")
    written = Written(tokenizer, ids, stops=("own fox",), max_tokens=len(ids), has_logprobs=True)

    assert "".join(one["token"] for one in entries(written)) == written.text


def test_nobody_is_told_what_was_not_asked_for(tokenizer: Tokenizer) -> None:
    assert not entries(Written(tokenizer, ids_of(tokenizer, "ab")))
