from __future__ import annotations

import json
from typing import Any

import pytest

from relay import wire
from tracker import answers, orders
from tracker.answers import Answer
from tracker.errors import ApiError
from tracker.events import Delta

BODY = b'{"messages":[{"role":"user","content":"Hi"}],"prompt":"Hi","seed":7}'


def answer_of(*deltas: Delta) -> Answer:
    answer = Answer(answers.CHAT, "chatcmpl-1", 0, "tiny")
    for delta in deltas:
        answer.add(delta)
    return answer


def test_a_chat_that_has_told_nothing_is_asked_as_before() -> None:
    assert orders.continued(BODY, answer_of()) == BODY


def test_one_that_has_goes_on_from_its_tokens_and_not_from_its_messages() -> None:
    answer = answer_of(Delta("漢", ids=(5, 6), prompt_ids=(1, 2)), Delta("b", ids=(7,)))
    fields: dict[str, Any] = json.loads(orders.continued(BODY, answer))
    resume = fields["meshnet"]["resume"]
    assert (resume["prompt_ids"], resume["ids"], resume["sent_chars"]) == ([1, 2], [5, 6, 7], 2)
    assert set(fields) == {"meshnet", "seed"}


def test_it_may_go_on_twice() -> None:
    first = orders.continued(BODY, answer_of(Delta("a", ids=(5,), prompt_ids=(1,))))
    answer = answer_of(Delta("a", ids=(5,), prompt_ids=(1,)), Delta("b", ids=(6,)))
    assert orders.continued(first, answer) == orders.continued(BODY, answer)


def test_more_tokens_than_a_message_holds_stay_where_they_are() -> None:
    long = tuple(range(100_000, 100_000 + wire.MAX_BODY_BYTES // 7))
    with pytest.raises(ApiError, match="too many to be sent to another node"):
        orders.continued(BODY, answer_of(Delta("a", ids=(5,), prompt_ids=long)))
