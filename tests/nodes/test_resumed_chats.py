"""A head that is asked to go on with a chat that another has begun, and one whose session goes on elsewhere."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from typing import Any

import pytest

from nodes.events import Answer
from relay import headers as names
from relay import wire
from tests.nodes.meshes import Mesh, Told, tell

NUM_TOKENS = 8


@pytest.fixture(scope="module")
def mesh() -> Any:
    with Mesh([(0, 2), (2, 4)]) as made:
        yield made


def resumed(whole: Told, num_events: int, **changes: Any) -> dict[str, Any]:
    """The body of a chat of which so many events have reached the client."""
    content = whole.content[:num_events]
    text = "".join(whole.deltas[:num_events])
    resume = {
        "prompt_ids": content[0]["meshnet"]["prompt_ids"],
        "ids": [token_id for event in content for token_id in event["meshnet"]["ids"]],
        "sent_chars": len(text),
        "sent_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    return {"max_tokens": NUM_TOKENS, "temperature": 0, "meshnet": {"resume": resume | changes}}


@pytest.mark.parametrize("num_events", [1, 4, NUM_TOKENS - 1])
def test_it_tells_what_is_left_and_replays_the_rest(mesh: Mesh, num_events: int) -> None:
    whole = mesh.chat("abc", max_tokens=NUM_TOKENS)
    told = tell(mesh.begin(mesh.request(resumed(whole, num_events), epoch=1)))

    assert whole.deltas[:num_events] + told.deltas == whole.deltas
    assert whole.ids[:num_events] + told.ids == whole.ids
    assert told.finish_reason == whole.finish_reason == "length"
    assert told.summary["usage"] == whole.summary["usage"]
    num_prompt = whole.summary["usage"]["prompt_tokens"]
    assert told.content[0]["meshnet"]["position"] == num_prompt + num_events
    assert "role" not in told.content[0]["choices"][0]["delta"]
    (replay,) = told.summary["failovers"]
    assert (replay["epoch"], replay["kept"], replay["replayed_tokens"]) == (1, "tokens", num_prompt + num_events)
    assert replay["replay_compute_ms"] > 0
    mesh.wait_until_free()


def test_a_completion_goes_on_too(mesh: Mesh) -> None:
    path = "/v1/completions"
    body = {"prompt": "the", "max_tokens": NUM_TOKENS, "temperature": 0}
    whole = tell(mesh.begin(mesh.request(body, path)))
    told = tell(mesh.begin(mesh.request(resumed(whole, 3), path, epoch=1)))
    assert whole.text == "".join(whole.deltas[:3]) + told.text


def test_the_prompt_isnt_written_again(mesh: Mesh) -> None:
    """A template may write today's date."""
    whole = mesh.chat("abc", max_tokens=NUM_TOKENS)
    prompt_ids = [*whole.content[0]["meshnet"]["prompt_ids"], 300]
    told = tell(mesh.begin(mesh.request(resumed(whole, 2, prompt_ids=prompt_ids), epoch=1)))
    assert told.summary["usage"]["prompt_tokens"] == len(prompt_ids)


def test_tokens_that_another_head_drew_count_for_the_penalties(mesh: Mesh) -> None:
    whole = mesh.chat("abc", max_tokens=NUM_TOKENS)
    steps = mesh.nodes[1].engine.steps
    steps.clear()
    tell(mesh.begin(mesh.request(resumed(whole, 2) | {"frequency_penalty": 1.0}, epoch=1)))
    sampled = [step.sampling for step in steps if step.sampling]
    assert {sampling.prompt_tokens for sampling in sampled} == {whole.summary["usage"]["prompt_tokens"]}


def test_calls_go_on_held_to_the_same_grammar_without_the_messages() -> None:
    """And with a tail that has never heard of it."""
    tools = [{"type": "function", "function": {"name": "now"}}]
    cuts = [(0, 2), (2, 4)]
    with Mesh(cuts, context_length=1000) as first, Mesh(cuts, context_length=1000) as second:
        asked = {"tools": tools, "parallel_tool_calls": False}
        whole = first.chat("abc", max_tokens=NUM_TOKENS, **asked)
        told = tell(second.begin(second.request(resumed(whole, 3) | asked, epoch=1)))
        grammars = {
            step.grammar.text for mesh in (first, second) for step in mesh.nodes[1].engine.steps if step.grammar
        }

    assert whole.deltas[:3] + told.deltas == whole.deltas
    assert len(grammars) == 1
    assert "calls" in whole.content[0]["meshnet"]
    assert "calls" not in told.content[0]["meshnet"]


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_ids": "abc"},
        {"prompt_ids": [-1]},
        {"ids": [1.5]},
        {"ids": [100_000]},
        {"sent_chars": -1},
        {"sent_chars": None},
        {"sent_sha256": "AB" * 32},
        {"sent_sha256": None},
    ],
)
def test_what_cant_be_continued_is_refused(mesh: Mesh, changes: dict[str, Any]) -> None:
    whole = mesh.chat("abc", max_tokens=NUM_TOKENS)
    answer = mesh.begin(mesh.request(resumed(whole, 2, **changes), epoch=1))
    assert isinstance(answer, wire.Response)
    assert answer.status == 400
    assert b'"param": "meshnet.resume"' in answer.body
    mesh.wait_until_free()


@pytest.mark.parametrize("changes", [{"sent_sha256": "ab" * 32}, {"sent_chars": 1}])
def test_another_text_than_was_sent_is_a_mismatch(mesh: Mesh, changes: dict[str, Any]) -> None:
    whole = mesh.chat("abc", max_tokens=NUM_TOKENS)
    answer = mesh.begin(mesh.request(resumed(whole, 3, **changes), epoch=1))
    assert isinstance(answer, wire.Response)
    assert (answer.status, wire.error_of(answer.status, answer.body)[0]) == (409, "resume_mismatch")
    mesh.wait_until_free()


def test_where_the_tokens_are_the_whole_answer_nothing_is_computed(mesh: Mesh) -> None:
    whole = mesh.chat("abc", max_tokens=NUM_TOKENS)
    mesh.head.engine.steps.clear()
    told = tell(mesh.begin(mesh.request(resumed(whole, NUM_TOKENS), epoch=1)))
    assert (told.text, told.ids, told.finish_reason) == ("", [], "length")
    assert not mesh.head.engine.steps


def begin_twice(mesh: Mesh) -> tuple[Future[Answer], Future[Answer], str]:
    """A chat that waits for this node's layers, and the same in its next epoch."""
    mesh.head.engine.may_work.clear()
    body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": NUM_TOKENS, "temperature": 0}
    request = mesh.request(body)
    session = request.headers[names.SESSION]
    older = mesh.head.api.begin(request, "relay")
    newer = mesh.head.api.begin(mesh.request(body, session=session, epoch=1), "relay")
    return older, newer, session


def test_a_newer_epoch_ends_the_older_chat_of_the_session_which_frees_nothing(mesh: Mesh) -> None:
    older, newer, session = begin_twice(mesh)
    mesh.head.engine.may_work.set()
    told = tell(newer.result(10))
    assert len(told.ids) == NUM_TOKENS
    mesh.wait_until_free()
    assert older.cancelled() or b"[DONE]" not in b"".join(older.result(0).events)  # type: ignore[union-attr]
    assert [epoch for closed, epoch in mesh.nodes[1].engine.closed if closed == session] == [1]


def test_a_chat_that_ends_after_its_successor_opens_nothing_again(mesh: Mesh) -> None:
    _, newer, session = begin_twice(mesh)
    mesh.head.engine.may_work.set()
    tell(newer.result(10))
    mesh.wait_until_free()
    for epoch in (0, 1):
        body = {"messages": [{"role": "user", "content": "abc"}]}
        answer = mesh.begin(mesh.request(body, session=session, epoch=epoch))
        assert isinstance(answer, wire.Response)
        assert answer.status == 403


@pytest.mark.parametrize(("epoch", "status"), [(0, 409), (1, 403)])
def test_an_epoch_that_isnt_newer_is_refused_while_the_session_runs(mesh: Mesh, epoch: int, status: int) -> None:
    _, newer, session = begin_twice(mesh)
    body = {"messages": [{"role": "user", "content": "abc"}]}
    answer = mesh.begin(mesh.request(body, session=session, epoch=epoch))
    assert isinstance(answer, wire.Response)
    assert answer.status == status
    mesh.head.engine.may_work.set()
    assert tell(newer.result(10)).is_done
    mesh.wait_until_free()


def test_a_node_that_heads_as_many_chats_as_it_may_takes_a_newer_epoch_of_one() -> None:
    with Mesh([(0, 2), (2, 4)], max_chats=1) as made:
        _, newer, _ = begin_twice(made)
        made.head.engine.may_work.set()
        assert tell(newer.result(10)).is_done
        made.wait_until_free()
