from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bench.faults import LASTS_S, draw
from bench.questions import Told, take_stream

NODES = ("first", "middle", "last")


def test_the_same_seed_draws_the_same_faults_of_all_kinds() -> None:
    faults = draw(1, 600, NODES)
    assert faults == draw(1, 600, NODES)
    assert faults != draw(2, 600, NODES)
    kinds = Counter(fault.kind for fault in faults)
    assert set(kinds) == set(LASTS_S)
    assert max(kinds.values()) - min(kinds.values()) <= 1
    assert len(faults) >= 60


def test_a_minute_has_its_share_of_faults_and_none_begins_at_its_end() -> None:
    for seed in range(50):
        faults = draw(seed, 60, NODES)
        assert len(faults) >= 5
        assert faults[-1].at_s <= 56


EXPECTED = Told("abc", [1, 2, 3], "length", {"completion_tokens": 3})


def test_two_long_texts_are_told_apart_where_they_differ() -> None:
    wrong = Told("a" * 50 + "b").compare(Told("a" * 60))
    assert wrong == "text: other from 50 on, 51 long instead of 60: …'aaab'… instead of …'aaaaaaaaaaa'…"


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (Told("abc", [1, 2, 3], "length", {"completion_tokens": 3}), ""),
        (Told("abd", [1, 2, 4], "length", {"completion_tokens": 3}), "text: 'abd' instead of 'abc'"),
        (Told("ab", [1, 2], "length", {"completion_tokens": 2}), "text: 'ab' instead of 'abc'"),
        (Told("abc", [1, 2, 3], "stop", {"completion_tokens": 3}), "finish_reason: 'stop' instead of 'length'"),
        (Told("ab", [1, 2], error="node_failed"), ""),
        (Told("b", [2], error="node_failed"), "isn't how the answer begins"),
        (Told("abc", [1, 2, 3], broken="the stream ended without [DONE]"), "without [DONE]"),
    ],
)
def test_an_answer_is_the_undisturbed_one_or_its_beginning_and_an_error(told: Told, wrong: str) -> None:
    assert wrong in told.compare(EXPECTED)
    assert bool(wrong) == bool(told.compare(EXPECTED))


def test_a_role_twice_and_text_after_the_end_are_seen() -> None:
    def choice(**fields: Any) -> dict[str, Any]:
        return {"choices": [{"delta": {"content": "a"}, **fields}]}

    def taken(*events: dict[str, Any]) -> str:
        told, stream = Told(), iter(events)
        take_stream(told, stream)
        return told.broken

    role: Iterator[dict[str, Any]] = iter([{"delta": {"role": "assistant", "content": "a"}}] * 2)
    assert taken(*({"choices": [one]} for one in role)) == "role came more than once"
    assert taken(choice(finish_reason="stop"), choice()) == "text follows the finish_reason"
    assert taken({"error": {"code": "x", "message": ""}}, choice()) == "something follows the error"
