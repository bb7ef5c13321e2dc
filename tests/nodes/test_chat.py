from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nodes import timings
from nodes.engine import EngineError
from nodes.events import StreamAnswer
from relay import wire
from tests.nodes.meshes import CONTEXT_LENGTH, Mesh, tell
from tests.nodes.models import make_tokenizer


@pytest.fixture(scope="module")
def mesh() -> Any:
    with Mesh([(0, 2), (2, 4)]) as made:
        yield made


def test_a_chat_streams_its_events_a_summary_and_done(mesh: Mesh) -> None:
    told = mesh.chat("abc", max_tokens=5)

    first = told.events[0]["meshnet"]["prompt_ids"]
    assert told.ids == [first[-1] + 1 + number for number in range(5)]
    assert told.finish_reason == "length"
    assert told.paths == ["local", "tunnel"]
    assert told.summary["usage"] == {
        "prompt_tokens": len(first),
        "completion_tokens": 5,
        "total_tokens": len(first) + 5,
    }
    hop = told.summary["hops"][1]
    assert (hop["peer_id"], hop["start_layer"], hop["end_layer"]) == (mesh.nodes[1].peer_id, 2, 4)
    assert hop["compute_ms"] == 2.0 * hop["steps"]
    assert hop["queue_ms"] == 0.5 * hop["steps"]
    assert told.is_done


def test_while_it_runs_a_chat_tells_how_it_goes(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any("progress" in event["meshnet"] for event in mesh.chat("abc", max_tokens=5).content), "it was short"
    monkeypatch.setattr(timings, "TELL_S", 0.0)
    told = mesh.chat("abc", max_tokens=5)

    progress = told.content[-1]["meshnet"]["progress"]
    assert progress["steps"] == told.summary["steps"]
    assert [(hop["start_layer"], hop["end_layer"]) for hop in progress["hops"]] == [(0, 2), (2, 4)]
    assert progress["hops"] == told.summary["hops"]
    assert all(len(step["hops"]) == 2 for step in progress["steps"])


def test_a_template_that_writes_bos_is_counted_as_transformers_does(mesh: Mesh) -> None:
    """The tokenizer of these nodes puts a BOS before plain text, and its template writes one itself."""
    told = mesh.chat("abc", max_tokens=1)
    messages = [{"role": "user", "content": "abc"}]
    encoded: Any = make_tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=True)

    assert told.summary["usage"]["prompt_tokens"] == len(encoded["input_ids"])
    assert told.events[0]["meshnet"]["prompt_ids"].count(0) == 1


def test_log_probabilities_come_with_the_ids_they_are_of(mesh: Mesh) -> None:
    told = mesh.chat("abc", max_tokens=5, top_logprobs=2)
    entries = [one for event in told.content for one in event["meshnet"].get("logprobs", [])]

    assert [one["logprob"] for one in entries] == [-token_id / 2 for token_id in told.ids]
    assert [len(one["top"]) for one in entries] == [2] * 5
    assert "".join(one["token"] for one in entries) == told.text


def test_a_text_that_repeats_itself_comes_in_fewer_steps() -> None:
    with Mesh([(0, 2), (2, 4)], next_token=lambda position, last_id: 270 + last_id % 5) as made:
        told = made.chat("abc", max_tokens=45)
        made.wait_until_free()

    assert [270 + token_id % 5 for token_id in told.ids[:-1]] == told.ids[1:]
    assert told.summary["hops"][1]["accepted"] > 0
    assert told.summary["usage"]["completion_tokens"] == len(told.ids) == 45


def test_a_bias_of_no_token_is_refused_before_the_stream_opens(mesh: Mesh) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "logit_bias": {"512": 1}}
    assert b'"param": "logit_bias"' in refused(mesh, body, 400)["raw"]


def test_a_bias_as_long_as_may_be_leaves_room_for_the_ids_of_a_chunk(mesh: Mesh) -> None:
    biases = {str(number): -99.999 for number in range(150, 450)}
    told = mesh.chat("abc" * 30, max_tokens=2, logit_bias=biases)
    assert len(told.ids) == 2


def test_after_a_chat_every_hop_is_free(mesh: Mesh) -> None:
    mesh.chat("abc")
    mesh.wait_until_free()

    assert [node.engine.cached_tokens for node in mesh.nodes] == [0, 0]


def test_a_completion_streams_text(mesh: Mesh) -> None:
    request = mesh.request({"prompt": "the", "max_tokens": 2, "temperature": 0}, "/v1/completions")
    told = tell(mesh.begin(request))

    assert all("text" in event["choices"][0] for event in told.content)
    assert len(told.ids) == 2


@pytest.mark.parametrize(
    ("asked", "allowed", "given"), [(5, 50, 5), (50, 5, 5), (None, 7, 7), (10_000, 10_000, "the room")]
)
def test_tokens_are_bounded_by_request_ticket_and_context(
    mesh: Mesh, asked: int | None, allowed: int, given: int | str
) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": asked, "temperature": 0}
    told = tell(mesh.begin(mesh.request(body, max_tokens=allowed)))

    expected = CONTEXT_LENGTH - told.summary["usage"]["prompt_tokens"] if given == "the room" else given
    assert len(told.ids) == expected
    assert told.finish_reason == "length"


def refused(mesh: Mesh, body: dict[str, Any], status: int, path: str = "/v1/chat/completions") -> dict[str, Any]:
    answer = mesh.begin(mesh.request(body, path))
    assert isinstance(answer, wire.Response)
    assert answer.status == status
    code, message = wire.error_of(answer.status, answer.body)
    mesh.wait_until_free()
    return {"code": code, "message": message, "raw": answer.body}


@pytest.mark.parametrize(("length", "fits"), [(CONTEXT_LENGTH - 1, True), (CONTEXT_LENGTH, False), (5000, False)])
def test_a_prompt_that_fills_the_context_is_refused_before_the_stream_opens(
    mesh: Mesh, length: int, fits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"prompt": "z" * (length - 1), "temperature": 0}  # and BOS
    if fits:
        told = tell(mesh.begin(mesh.request(body, "/v1/completions")))
        assert (len(told.ids), told.finish_reason) == (1, "length")
    else:
        error = refused(mesh, body, 400, "/v1/completions")
        assert error["code"] == "context_length_exceeded"
        assert caplog.messages[-1].endswith("ends: context_length_exceeded: its prompt"), "and no word of the client's"
        assert b'"param": "prompt"' in error["raw"]


def test_a_prompt_that_takes_long_to_read_is_refused_with_a_status_all_the_same(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodes.chat.KEEPALIVE_S", 0.01)
    head = mesh.head.api._head
    assert head
    read = head.tokenizer.plain_prompt

    def read_slowly(text: str) -> list[int]:
        time.sleep(0.2)
        return read(text)

    monkeypatch.setattr(head.tokenizer, "plain_prompt", read_slowly)
    error = refused(mesh, {"prompt": "z" * CONTEXT_LENGTH}, 400, "/v1/completions")
    assert error["code"] == "context_length_exceeded"


def test_a_model_without_a_chat_template_says_so_and_completes_plain_text() -> None:
    with Mesh([(0, 4)], relayed=False) as made:
        head = made.head.api._head
        assert head
        head.tokenizer._tokenizer.chat_template = None
        body = {"messages": [{"role": "user", "content": "a"}]}
        assert "chat template" in refused(made, body, 400)["message"]
        assert tell(made.begin(made.request({"prompt": "a", "max_tokens": 1}, "/v1/completions"))).is_done


def test_a_bad_parameter_is_refused_before_the_stream_opens(mesh: Mesh) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "temperature": 9}
    assert b'"param": "temperature"' in refused(mesh, body, 400)["raw"]


TOOLS = [{"type": "function", "function": {"name": "now"}}]
USER = [{"role": "user", "content": "a"}]


def saying(text: str) -> Callable[[int, int], int]:
    """A model that says this as soon as an answer of the form above begins, whatever it is held to."""
    script: list[int] = [*make_tokenizer()(text, add_special_tokens=False)["input_ids"], 2]
    begins: list[int] = []

    def next_token(position: int, last_id: int) -> int:
        begins[:] = begins or [position]
        return script[min(position - begins[0], len(script) - 1)]

    return next_token


def test_calls_are_told_as_the_model_writes_them_and_the_tail_is_told_the_grammar() -> None:
    said = 'Now.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    with Mesh([(0, 2), (2, 4)], next_token=saying(said), context_length=1000) as made:
        told = tell(made.begin(made.request({"messages": USER, "tools": TOOLS, "temperature": 0}, max_tokens=200)))
        sampled = [(step.sampling, step.grammar) for step in made.nodes[1].engine.steps if step.sampling]
        made.wait_until_free()

    assert (told.text, told.finish_reason) == (said, "stop")
    assert told.content[0]["meshnet"]["calls"]["begin"] == "<tool_call>\n"
    num_prompt = told.summary["usage"]["prompt_tokens"]
    assert {sampling.prompt_tokens for sampling, _ in sampled} == {num_prompt}
    assert all(
        grammar and grammar.digest == sampling.grammar and "now" in grammar.text for sampling, grammar in sampled
    )


def test_an_answer_of_json_that_the_limit_cuts_is_not_mended() -> None:
    with Mesh([(0, 2), (2, 4)], next_token=saying('{"a": 1}')) as made:
        body = {"messages": USER, "response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 4}
        told = tell(made.begin(made.request(body)))
        assert (told.finish_reason, len(told.ids)) == ("length", 4)
        assert '{"a": 1}'.startswith(told.text)
        assert "calls" not in told.content[0]["meshnet"]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"format": "x", "type": "string"}}}},
            "response_format.json_schema.schema.format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "(?=a)"}}}},
            "response_format.json_schema.schema.pattern",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
            "response_format.json_schema.schema",
        ),
        (
            {"tools": [*TOOLS, {"type": "function", "function": {"name": "b", "parameters": {"required": "x"}}}]},
            "tools[1].function.parameters.required",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "b", "parameters": {"enum": [{"a": "x" * 70_000}]}}}]},
            "tools[0].function.parameters",
        ),
    ],
)
def test_a_form_that_cant_be_kept_to_is_refused_before_the_stream_opens(
    mesh: Mesh, asked: dict[str, Any], param: str
) -> None:
    error = refused(mesh, {"messages": USER} | asked, 400)
    assert f'"param": "{param}"'.encode() in error["raw"]
    assert error["message"].startswith(param)


def test_without_grammars_a_form_is_refused_and_free_text_is_not() -> None:
    with Mesh([(0, 4)], relayed=False) as made:
        assert made.head.api._head
        made.head.api._head = replace(made.head.api._head, grammars=None)
        assert b'"param": "tools"' in refused(made, {"messages": USER, "tools": TOOLS}, 400)["raw"]
        assert made.chat("a", max_tokens=1).is_done


def test_while_the_prompt_is_worked_a_comment_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.chat.KEEPALIVE_S", 0.05)
    with Mesh([(0, 4)], relayed=False) as made:
        made.head.engine.may_work.clear()
        answer = made.begin(made.request({"prompt": "a", "max_tokens": 2, "temperature": 0}, "/v1/completions"))
        assert isinstance(answer, StreamAnswer)  # opened with nothing to say yet
        answer.events._keepalive_s = 0.05
        threading.Timer(0.3, made.head.engine.may_work.set).start()
        told = tell(answer)

    assert told.num_keepalives >= 2
    assert len(told.ids) == 2


def test_an_error_that_comes_first_has_a_status(mesh: Mesh) -> None:
    mesh.nodes[1].engine.fail_with = EngineError("broken")
    try:
        answer = mesh.begin(mesh.request({"prompt": "a"}, "/v1/completions"))
        assert isinstance(answer, wire.Response)
        assert answer.status == 502
        code, message = wire.error_of(answer.status, answer.body)
        assert code == "node_failed"
        assert message == f"pipeline error: layers 2–3 on peer {mesh.nodes[1].peer_id[:8]}: broken"
    finally:
        mesh.nodes[1].engine.fail_with = None
    mesh.wait_until_free()


def test_an_error_in_mid_stream_is_an_event_after_the_summary() -> None:
    made = Mesh([(0, 2), (2, 4)])

    def fail_at_third(position: int, last_id: int) -> int:
        if len(made.nodes[1].engine.steps) >= 4:
            raise EngineError("broken")
        return last_id + 1

    made.next_token = fail_at_third
    with made:
        told = tell(made.begin(made.request({"prompt": "abcd", "max_tokens": 9}, "/v1/completions")))
        made.wait_until_free()

    assert len(told.ids) == 2
    assert told.error
    assert told.error["code"] == "node_failed"
    assert [hop["steps"] for hop in told.summary["hops"]] == [4, 3]
    assert told.is_done


def test_no_room_is_busy() -> None:
    with Mesh([(0, 2), (2, 4)]) as made:
        made.nodes[1].engine.sessions._max_cached_tokens = 10
        assert refused(made, {"prompt": "abcdef", "max_tokens": 20}, 503, "/v1/completions")["code"] == "busy"


def test_the_deadline_of_a_request_ends_it_with_a_typed_error() -> None:
    with Mesh([(0, 4)], relayed=False) as made:
        made.head.engine.may_work.clear()
        answer = made.begin(made.request({"prompt": "a"}, "/v1/completions", x_meshnet_deadline_ms=300))
        made.head.engine.may_work.set()

    assert isinstance(answer, wire.Response)
    assert answer.status == 504


def test_a_cancelled_chat_stops_before_its_next_step_and_frees_every_hop(mesh: Mesh) -> None:
    answer = mesh.begin(mesh.request({"prompt": "a", "max_tokens": 50, "temperature": 0}, "/v1/completions"))
    assert isinstance(answer, StreamAnswer)
    next(iter(answer.events))
    answer.cancel()

    mesh.wait_until_free()


def test_a_chat_cancelled_before_its_stream_opened_ends_too(mesh: Mesh) -> None:
    mesh.head.engine.may_work.clear()
    answering = mesh.head.api.begin(mesh.request({"prompt": "a"}, "/v1/completions"), "relay")
    assert answering.cancel()
    mesh.head.engine.may_work.set()

    mesh.wait_until_free()


def test_when_a_later_epoch_was_seen_it_leaves_the_hops_alone() -> None:
    made = Mesh([(0, 2), (2, 4)])

    def supersede(position: int, last_id: int) -> int:
        tail = made.nodes[1].engine.sessions
        if len(made.nodes[1].engine.steps) == 2:
            next(iter(tail._sessions.values())).epoch = 1
        return last_id + 1

    made.next_token = supersede
    with made:
        told = tell(made.begin(made.request({"prompt": "ab", "max_tokens": 9}, "/v1/completions")))
        assert told.error
        assert told.error["code"] == "stale"
        until = time.monotonic() + 5
        while made.head.engine.num_sessions:
            assert time.monotonic() < until
        assert made.nodes[1].engine.num_sessions == 1
