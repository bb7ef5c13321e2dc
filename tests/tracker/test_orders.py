from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from relay import wire
from tests.tracker.conftest import MakeNode
from tracker import answers, orders
from tracker.answers import Answer, Completion
from tracker.errors import ApiError
from tracker.events import Delta

BODY = b'{"messages":[{"role":"user","content":"Hi"}],"prompt":"Hi","seed":7}'


def answer_of(*deltas: Delta) -> Answer:
    answer = Completion(answers.CHAT, "chatcmpl-1", 0, "tiny").new_answer({})
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


def test_the_form_of_its_answer_stays_what_was_asked_for() -> None:
    form = {"tools": [{"type": "function"}], "tool_choice": "required", "response_format": {"type": "json_object"}}
    body = json.dumps(json.loads(BODY) | form).encode()
    fields = json.loads(orders.continued(body, answer_of(Delta("a", ids=(5,), prompt_ids=(1,)))))
    assert {name: fields[name] for name in form} == form


def test_it_may_go_on_twice() -> None:
    first = orders.continued(BODY, answer_of(Delta("a", ids=(5,), prompt_ids=(1,))))
    answer = answer_of(Delta("a", ids=(5,), prompt_ids=(1,)), Delta("b", ids=(6,)))
    assert orders.continued(first, answer) == orders.continued(BODY, answer)


def test_more_tokens_than_a_message_holds_stay_where_they_are() -> None:
    long = tuple(range(100_000, 100_000 + wire.MAX_BODY_BYTES // 7))
    with pytest.raises(ApiError, match="too many to be sent to another node"):
        orders.continued(BODY, answer_of(Delta("a", ids=(5,), prompt_ids=long)))


@pytest.mark.django_db
def test_a_head_that_left_since_it_was_chosen_is_asked_all_the_same_and_the_relay_says_that_it_is_gone(
    make_node: MakeNode,
) -> None:
    call = orders.call_of(make_node("head", 0, 12))

    async def statuses() -> list[int]:
        asked = call(wire.Request("1", "POST", "/v1/completions", {}, b"{}"))
        return [answer.status async for answer in asked if isinstance(answer, wire.Response)]

    assert asyncio.run(statuses()) == [404]
