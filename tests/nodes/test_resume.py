"""A chat that was cut anywhere and goes on at another head: together the two tell what one would have told."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.completion import CompletionRequest
from nodes.resume import Replay, Resume, ResumeMismatch, Seam
from nodes.sampling import GREEDY, Sampled, TokenLogprobs
from nodes.text import Tokenizer
from nodes.writer import Writer
from tests.nodes.models import make_tokenizer

EOS = 2
PROMPT = [7, 8, 9]
TOKENIZER = Tokenizer(make_tokenizer(), {EOS})
WHOLE_TEXTS = ["The quick brown fox", "👩‍👩‍👧‍👦 한국어 漢字 é", "aa aab aabc", "\ufffd?"]
ALPHABET = sorted({token_id for text in WHOLE_TEXTS for token_id in TOKENIZER.plain_prompt(text)[1:]})
STOPS = ["own fox", "fo", "aab", "한", "\ufffd", "b"]

answers = st.one_of(
    st.lists(st.sampled_from(WHOLE_TEXTS), max_size=3).map(lambda texts: TOKENIZER.plain_prompt("".join(texts))[1:]),
    st.lists(st.sampled_from(ALPHABET), max_size=30),  # halves of characters in any order
)


def writer_of(stops: Sequence[str], max_tokens: int, is_chat: bool) -> Writer:
    request = CompletionRequest(is_chat, None, None, None, GREEDY, tuple(stops))
    return Writer(request, PROMPT, TOKENIZER, max_tokens)


def told_by(writer: Writer, ids: Sequence[int], has_logprobs: bool) -> list[dict[str, Any]]:
    """Its events for these tokens, up to its end."""
    events = []
    for token_id in ids:
        if writer.finish_reason:
            break
        logprobs = TokenLogprobs(-token_id / 8, ((token_id, -0.5),)) if has_logprobs else None
        event = writer.push(Sampled(token_id, logprobs))
        events += [event] if event else []
    return events


class Told:
    """What a client has of some events, and the tracker beside it."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        choices = [event["choices"][0] for event in events]
        self.text = "".join(one["text"] if "text" in one else one["delta"]["content"] for one in choices)
        self.reasons = [one["finish_reason"] for one in choices]
        self.roles = [one["delta"]["role"] for one in choices if "role" in one.get("delta", {})]
        self.ids = [token_id for event in events for token_id in event["meshnet"]["ids"]]
        self.positions = [event["meshnet"]["position"] for event in events]
        self.logprobs = [one for event in events for one in event["meshnet"].get("logprobs", [])]
        self.prompts = [event["meshnet"]["prompt_ids"] for event in events if "prompt_ids" in event["meshnet"]]

    def resume(self) -> Resume:
        sha256 = hashlib.sha256(self.text.encode()).hexdigest()
        return Resume(tuple(PROMPT), tuple(self.ids), len(self.text), sha256)


@settings(deadline=None, max_examples=60)
@given(answers, st.lists(st.sampled_from(STOPS), max_size=2), st.booleans(), st.booleans(), st.booleans())
def test_cut_at_every_event_the_joined_answer_is_the_same(
    ids: list[int], stops: list[str], ends: bool, is_chat: bool, has_logprobs: bool
) -> None:
    ids = [*ids, EOS] if ends else ids or [EOS]
    max_tokens = len(ids)
    first = writer_of(stops, max_tokens, is_chat)
    events = told_by(first, ids, has_logprobs)
    whole = Told(events)
    for cut in range(1, len(events)):
        before = Told(events[:cut])
        second = writer_of(stops, max_tokens, is_chat)
        assert second.resume(before.resume()) is None, "the client has all that these tokens stand for"
        joined = Told([*events[:cut], *told_by(second, ids[len(before.ids) :], has_logprobs)])
        assert joined.__dict__ == whole.__dict__
        assert second.usage() == first.usage()
    assert whole.reasons.count(None) == len(events) - 1, "one reason, with the last event"


def test_after_the_last_event_nothing_is_left_but_the_reason() -> None:
    """The tracker asks nobody then; a head that is asked all the same says the end once more."""
    first = writer_of([], 5, is_chat=True)
    told = Told(told_by(first, TOKENIZER.plain_prompt("The quick brown fox")[1:6], has_logprobs=False))
    second = writer_of([], 5, is_chat=True)
    event = second.resume(told.resume())
    assert event is not None
    assert event["choices"][0] == {"index": 0, "finish_reason": "length", "delta": {"content": ""}}
    assert event["meshnet"] == {"ids": [], "position": len(PROMPT) + 5}


def test_text_that_the_first_head_held_longer_comes_with_the_first_event() -> None:
    told = Resume(tuple(PROMPT), tuple(TOKENIZER.plain_prompt("ab")[1:]), 1, hashlib.sha256(b"a").hexdigest())
    event = writer_of([], 50, is_chat=True).resume(told)
    assert event is not None
    assert event["choices"][0]["delta"] == {"content": "b"}


def test_text_that_the_first_head_held_less_long_isnt_told_twice() -> None:
    """Its stop strings let something out that this head's still hold."""
    ids = TOKENIZER.plain_prompt("abc")[1:]
    told = Resume(tuple(PROMPT), tuple(ids[:2]), 2, hashlib.sha256(b"ab").hexdigest())
    writer = writer_of(["bcd"], 50, is_chat=True)
    assert writer.resume(told) is None
    assert Told(told_by(writer, [*ids[2:], EOS], has_logprobs=False)).text == "c"


@pytest.mark.parametrize("sent", ["x", "The slow", "The quick brown fox jumps over the lazy dog"])
def test_what_was_sent_must_be_the_beginning(sent: str) -> None:
    ids = TOKENIZER.plain_prompt("The quick brown fox")[1:]
    told = Resume(tuple(PROMPT), tuple(ids[:-2]), len(sent), hashlib.sha256(sent.encode()).hexdigest())
    writer = writer_of([], 50, is_chat=True)

    def go_on() -> None:
        writer.resume(told)
        told_by(writer, [*ids[-2:], EOS], has_logprobs=False)

    with pytest.raises(ResumeMismatch):
        go_on()


def test_a_seam_lets_through_what_lies_beyond() -> None:
    seam = Seam(3, hashlib.sha256(b"abc").hexdigest())
    assert [seam.beyond(piece) for piece in ("a", "", "bcd", "e")] == ["", "", "d", "e"]
    seam.end()


def test_nothing_sent_is_the_beginning_of_everything() -> None:
    seam = Seam(0, hashlib.sha256(b"").hexdigest())
    assert seam.beyond("a") == "a"


def test_a_replay_ends_with_the_first_new_token() -> None:
    replay = Replay(epoch=2, num_tokens=9)
    assert replay.as_dict() == {"epoch": 2, "kept": "tokens", "replayed_tokens": 9}
    replay.end([{"compute_ms": 1.5}, {"compute_ms": 2}])
    replay.end([{"compute_ms": 100}])
    assert replay.as_dict()["replay_compute_ms"] == 3.5
