"""A chat against a made-up head: what the client gets, and what the session's row says afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone
from pytest_django import Settings

from relay import wire
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import HELLO, FakeHead, done, said, sse
from tests.tracker.sessions import begin_chats
from tracker import answers, background, chats, proxy
from tracker.chats import Chat
from tracker.errors import ApiError
from tracker.events import Delta, Event, Keepalive
from tracker.hopreports import Report
from tracker.models import ChatSession, Node
from tracker.openai import read_chat, read_completion
from tracker.tickets import SigningKey

Begin = Callable[..., Chat]


@pytest.fixture
def nodes(make_node: MakeNode, connect: Callable[[Node], None], ticket_key: SigningKey) -> list[Node]:
    made = [make_node("head", 0, 6), make_node("tail", 6, 12)]
    for node in made:
        connect(node)
    return made


@pytest.fixture
def begin(nodes: list[Node]) -> Begin:
    """A chat whose head is the given fake."""

    def make(head: FakeHead, *, deadline_s: float = 30.0, **fields: Any) -> Chat:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields
        [chat] = chats.begin(read_chat(json.dumps(body).encode()), answers.CHAT, None, timezone.now())
        return replace(chat, call=head, deadline_s=deadline_s)

    return make


@pytest.fixture
def begin_choices(nodes: list[Node]) -> Callable[..., list[Chat]]:
    """A chat for each of the given fakes, the choices of one answer."""

    def make(*heads: FakeHead, **fields: Any) -> list[Chat]:
        begun = begin_chats(n=len(heads), **fields)
        return [replace(chat, call=head) for chat, head in zip(begun, heads, strict=True)]

    return make


def row() -> ChatSession:
    return ChatSession.objects.get()


def rows() -> list[ChatSession]:
    return list(ChatSession.objects.order_by("choice"))


async def all_is_written() -> None:
    """Also what a task that was cancelled has left to be written."""
    while background.running:
        await asyncio.wait(background.running)


@async_to_sync
async def stream(*begun: Chat) -> list[Any]:
    """The events a streaming client gets, as JSON, comments and [DONE] as they are."""
    events = proxy.proxy_chats(begun)
    await anext(events)
    text = b"".join([part async for part in proxy.streamed(begun[0].answer.completion, events)]).decode()
    await all_is_written()
    return [
        json.loads(one[6:]) if one.startswith("data: {") else one for one in text.removesuffix("\n\n").split("\n\n")
    ]


@async_to_sync
async def whole(*begun: Chat) -> dict[str, Any]:
    return await proxy.whole(begun[0].answer.completion, proxy.proxy_chats(begun))


def test_a_stream_is_openais_with_nothing_of_the_nodes_in_it(begin: Begin) -> None:
    head = FakeHead(HELLO[:50], HELLO[50:])
    chat = begin(head)
    first, second, end = stream(chat)
    assert end == "data: [DONE]"
    assert first["choices"] == [
        {"index": 0, "logprobs": None, "finish_reason": None, "delta": {"role": "assistant", "content": "Hel"}}
    ]
    assert second["choices"] == [{"index": 0, "logprobs": None, "finish_reason": "stop", "delta": {"content": "lo"}}]
    for chunk in (first, second):
        assert chunk["id"] == chat.answer.completion.completion_id
        assert (chunk["object"], chunk["model"]) == ("chat.completion.chunk", "tiny")
        assert "meshnet" not in chunk
        assert "usage" not in chunk
    assert head.was_read_to_the_end


def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(begin: Begin) -> None:
    *texts, usage, end = stream(begin(FakeHead(HELLO), stream=True, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in texts] == [None, None]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    assert end == "data: [DONE]"


def test_an_unstreamed_answer_is_put_together_from_the_stream(begin: Begin) -> None:
    answer = whole(begin(FakeHead(b": keepalive\n\n", HELLO)))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "Hello"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] == 7
    assert "meshnet" not in answer


def told(token: str, logprob: float, offset: int) -> dict[str, Any]:
    """One token as a head tells its log probability, and one that could have come."""
    other = {"token": "\\xf0\\x9f", "bytes": [0xF0, 0x9F], "logprob": -2.5}
    return {"token": token, "bytes": list(token.encode()), "logprob": logprob, "offset": offset, "top": [other]}


SPELLED = sse(
    said("Hel", [11], prompt_ids=[1], logprobs=[told("H", -0.25, 0), told("el", -0.5, 1)]),
    said("lo", [12], logprobs=[told("lo", -1.0, 3)]),
    said("", [2], "stop"),
    done(),
    "data: [DONE]",
)
OTHER = {"token": "\\xf0\\x9f", "logprob": -2.5, "bytes": [0xF0, 0x9F]}


def test_a_chats_log_probabilities_are_those_of_its_tokens(begin: Begin) -> None:
    first, second, last, _ = stream(begin(FakeHead(SPELLED), logprobs=True, top_logprobs=1))
    assert [one["choices"][0]["logprobs"]["content"] for one in (first, second)] == [
        [
            {"token": "H", "logprob": -0.25, "bytes": [72], "top_logprobs": [OTHER]},
            {"token": "el", "logprob": -0.5, "bytes": [101, 108], "top_logprobs": [OTHER]},
        ],
        [{"token": "lo", "logprob": -1.0, "bytes": [108, 111], "top_logprobs": [OTHER]}],
    ]
    assert last["choices"][0]["logprobs"] is None
    ChatSession.objects.all().delete()
    answer = whole(begin(FakeHead(SPELLED), logprobs=True, top_logprobs=1))["choices"][0]
    assert [one["token"] for one in answer["logprobs"]["content"]] == ["H", "el", "lo"]
    assert answer["logprobs"]["refusal"] is None


def test_a_completions_log_probabilities_are_four_lists(nodes: list[Node]) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a", "logprobs": 1}).encode()
    for is_streamed in (True, False):
        [chat] = chats.begin(read_completion(body), answers.COMPLETION, None, timezone.now())
        chat = replace(chat, call=FakeHead(SPELLED))
        parts = [one["choices"][0]["logprobs"] for one in stream(chat)[:2]] if is_streamed else []
        found = parts[0] if is_streamed else whole(chat)["choices"][0]["logprobs"]
        count = 2 if is_streamed else 3
        assert found["tokens"] == ["H", "el", "lo"][:count]
        assert found["token_logprobs"] == [-0.25, -0.5, -1.0][:count]
        assert found["text_offset"] == [0, 1, 3][:count]
        assert found["top_logprobs"][0] == {OTHER["token"]: -2.5, "H": -0.25}
        if is_streamed:
            assert parts[1]["text_offset"] == [3]
        ChatSession.objects.all().delete()


def test_without_being_asked_for_no_log_probabilities_are_told(begin: Begin) -> None:
    first, *_ = stream(begin(FakeHead(SPELLED)))
    assert first["choices"][0]["logprobs"] is None
    ChatSession.objects.all().delete()
    assert whole(begin(FakeHead(SPELLED)))["choices"][0]["logprobs"] is None


def test_calls_in_the_text_are_told_as_calls_and_the_row_says_so(begin: Begin) -> None:
    markup = {"begin": "<tool_call>", "end": "</tool_call>", "separator": "", "arguments": "arguments"}
    pieces = ["<tool_", 'call>{"name": "f", "arguments"', ': {"a"', ": 1}}</tool_call>"]
    told = [said(piece, [number]) for number, piece in enumerate(pieces)]
    told[0]["meshnet"] |= {"prompt_ids": [1], "calls": markup}
    head = sse(*told, said("", [9], "stop"), done(), "data: [DONE]")
    tools = [{"type": "function", "function": {"name": "f"}}]
    first, sign_of_life, begins, *pieces_of_arguments, last, end = stream(begin(FakeHead(head), tools=tools))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert (sign_of_life, end) == (": keepalive", "data: [DONE]")
    [call] = begins["choices"][0]["delta"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": ""}
    found = [chunk["choices"][0]["delta"]["tool_calls"][0]["function"] for chunk in pieces_of_arguments]
    assert found == [{"arguments": '{"a"'}, {"arguments": ": 1}"}]
    assert last["choices"][0] == {"index": 0, "logprobs": None, "finish_reason": "tool_calls", "delta": {}}
    assert row().finish_reason == "tool_calls"
    ChatSession.objects.all().delete()
    choice = whole(begin(FakeHead(head), tools=tools))["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert choice["finish_reason"] == row().finish_reason == "tool_calls"


def hop_of(node: Node, start_layer: int, end_layer: int, path: str) -> dict[str, Any]:
    times = {"steps": 3, "ms_total": 30.0, "compute_ms": 20.0, "queue_ms": 1.0}
    return {"peer_id": node.peer_id, "start_layer": start_layer, "end_layer": end_layer, "path": path} | times


def choice_of(letter: str, *, num_prompt: int = 5, before: tuple[Any, ...] = ()) -> FakeHead:
    """A head that says a letter twice."""
    texts = said(letter, [1], prompt_ids=[1]), said(letter.upper(), [2], "length")
    return FakeHead(sse(texts[0]), *before, sse(texts[1], done([], num_prompt, 2), "data: [DONE]"))


Choices = Callable[..., list[Chat]]


def test_choices_come_side_by_side_in_one_stream(begin_choices: Choices) -> None:
    *chunks, usage, end = stream(
        *begin_choices(choice_of("a"), choice_of("b"), stream=True, stream_options={"include_usage": True})
    )
    assert len({chunk["id"] for chunk in (*chunks, usage)}) == 1
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    for index, letter in enumerate("ab"):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["delta"] for choice in mine] == [
            {"role": "assistant", "content": letter},
            {"content": letter.upper()},
        ]
        assert [choice["finish_reason"] for choice in mine] == [None, "length"]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    assert end == "data: [DONE]"
    assert [session.state for session in rows()] == [ChatSession.State.DONE] * 2


def test_a_choice_that_waits_keeps_the_others_from_nothing(begin_choices: Choices) -> None:
    waits = asyncio.Event()
    begun = begin_choices(choice_of("a", before=(waits,)), choice_of("b"))

    @async_to_sync
    async def read() -> str:
        events, text = proxy.proxy_chats(begun), ""
        async for answer, event in events:
            if isinstance(event, Delta):
                text += event.text
            if answer.index == 1 and isinstance(event, Report):
                waits.set()
        return text

    assert sorted(read()) == ["A", "B", "a", "b"]
    assert [session.completion_tokens for session in rows()] == [2, 2]


def test_an_unstreamed_answer_has_its_choices_in_order(begin_choices: Choices) -> None:
    pause = asyncio.Event()

    class Last(FakeHead):
        """Lets the first go on when it has said all."""

        async def __call__(self, request: wire.Request) -> Any:
            async for item in super().__call__(request):
                yield item
            pause.set()

    answer = whole(*begin_choices(choice_of("a", before=(pause,)), Last(HELLO)))
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [
        (0, "aA"),
        (1, "Hello"),
    ]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "stop"]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


def test_a_head_that_refuses_one_choice_refuses_all(begin_choices: Choices) -> None:
    agrees = FakeHead(sse(said("a", [7])), asyncio.Event())
    refuses = FakeHead(status=503, body=json.dumps({"error": {"code": "busy", "message": "no room"}}).encode())
    with pytest.raises(ApiError) as error:
        stream(*begin_choices(agrees, refuses))
    assert (error.value.status, error.value.code) == (503, "busy")
    assert agrees.is_closed
    first, second = rows()
    assert (second.state, second.error_code) == (ChatSession.State.FAILED, "busy")
    assert (first.state, first.error_code) == (ChatSession.State.CANCELLED, "")
    assert first.error_message == "another choice of the completion failed: no room"


@pytest.mark.parametrize("is_streamed", [True, False])
def test_one_choice_that_fails_ends_the_answer_with_its_error(begin_choices: Choices, is_streamed: bool) -> None:
    waits = FakeHead(sse(said("a", [7])), asyncio.Event())
    fails = FakeHead(sse(said("b", [8]), {"error": {"code": "node_failed", "message": "layers 6–11 failed"}}))
    begun = begin_choices(waits, fails)
    if is_streamed:
        *_, error, end = stream(*begun)
        assert (error["error"]["code"], error["error"]["message"]) == ("node_failed", "layers 6–11 failed")
        assert end == "data: [DONE]"
    else:
        with pytest.raises(ApiError, match="layers 6–11 failed"):
            whole(*begun)
    assert waits.is_closed
    assert [session.state for session in rows()] == [ChatSession.State.CANCELLED, ChatSession.State.FAILED]
    assert [session.completion_tokens for session in rows()] == [1, 1]


def test_the_deadline_ends_all_choices(begin_choices: Choices) -> None:
    heads = [FakeHead(sse(said("a", [7])), asyncio.Event()) for _ in range(2)]
    *_, error, _ = stream(*(replace(chat, deadline_s=0.1) for chat in begin_choices(*heads)))
    assert error["error"]["code"] == "deadline_exceeded"
    assert all(head.is_closed for head in heads)
    assert not ChatSession.objects.filter(ended=None).exists()


def test_the_trace_of_several_choices_is_told_for_each(begin_choices: Choices, nodes: list[Node]) -> None:
    def heads() -> list[FakeHead]:
        hops = [hop_of(nodes[0], 0, 6, "local"), hop_of(nodes[1], 6, 12, "relay")]
        return [
            FakeHead(sse(said(text, [id_], "stop", prompt_ids=[1]), done(hops, 1, 1), "data: [DONE]"))
            for text, id_ in (("a", 7), ("b", 8))
        ]

    *texts, trace, _ = stream(*begin_choices(*heads(), stream=True, meshnet={"trace": True}))
    assert {chunk["choices"][0]["index"]: chunk["meshnet"]["ids"] for chunk in texts} == {0: [7], 1: [8]}
    assert [one["index"] for one in trace["meshnet"]["choices"]] == [0, 1]
    assert [hop["node"] for hop in trace["meshnet"]["choices"][1]["hops"]] == ["head", "tail"]
    ChatSession.objects.all().delete()
    answer = whole(*begin_choices(*heads(), meshnet={"trace": True}))
    told = answer["meshnet"]["choices"]
    assert [(one["index"], one["ids"], one["prompt_ids"]) for one in told] == [(0, [7], (1,)), (1, [8], (1,))]
    assert told[0]["hops"] == trace["meshnet"]["choices"][0]["hops"]


def test_a_trace_brings_ids_and_the_hop_table_by_name(begin: Begin, nodes: list[Node]) -> None:
    hops = [hop_of(nodes[0], 0, 6, "local"), hop_of(nodes[1], 6, 12, "relay")]
    said_all = sse(said("a", [7], "length", prompt_ids=[1]), done(hops, 1, 1), "data: [DONE]")
    text, trace, _ = stream(begin(FakeHead(said_all), stream=True, meshnet={"trace": True}))
    assert text["meshnet"] == {"ids": [7], "position": 0, "prompt_ids": [1]}
    assert [hop["node"] for hop in trace["meshnet"]["hops"]] == ["head", "tail"]
    assert trace["choices"] == []
    assert nodes[0].peer_id not in json.dumps(trace)
    ChatSession.objects.all().delete()
    answer = whole(begin(FakeHead(said_all), meshnet={"trace": True}))
    assert answer["meshnet"]["ids"] == [7]
    assert answer["meshnet"]["hops"] == trace["meshnet"]["hops"]


def test_the_row_tells_the_story_of_a_finished_chat(begin: Begin, nodes: list[Node]) -> None:
    hops = [hop_of(nodes[0], 0, 6, "local"), hop_of(nodes[1], 6, 12, "relay") | {"drafted": 6, "accepted": 4}]
    whole(begin(FakeHead(sse(said("a", [7, 8], "length"), done(hops, 3, 2), "data: [DONE]"))))
    session = row()
    assert session.state == ChatSession.State.DONE
    assert (session.finish_reason, session.prompt_tokens, session.completion_tokens) == ("length", 3, 2)
    assert (session.drafted_tokens, session.accepted_tokens) == (6, 4)
    assert session.ttft_ms is not None
    assert session.ended is not None
    assert (session.error_code, session.error_message) == ("", "")
    assert [(hop.node_name, hop.path, hop.steps) for hop in session.hops.all()] == [
        ("head", "local", 3),
        ("tail", "relay", 3),
    ]
    assert session.hops.all()[1].ms_per_token == 15.0


def test_hops_that_the_route_has_not_are_not_recorded(begin: Begin, nodes: list[Node]) -> None:
    strange = [hop_of(nodes[0], 0, 12, "local"), hop_of(nodes[1], 6, 12, "telepathy") | {"steps": 9}]
    whole(begin(FakeHead(sse(said("a", [7], "stop"), done(strange), "data: [DONE]"))))
    assert [(hop.steps, hop.path) for hop in row().hops.all()] == [(None, ""), (9, "")]


def test_keepalives_reach_the_client(begin: Begin) -> None:
    assert stream(begin(FakeHead(b": keepalive\n\n", HELLO)))[0] == ": keepalive"


@pytest.mark.parametrize(
    ("status", "body", "seen", "code"),
    [
        (
            400,
            {"code": "context_length_exceeded", "message": "too long", "param": "messages"},
            400,
            "context_length_exceeded",
        ),
        (503, {"code": "busy", "message": "no room"}, 503, "busy"),
        (403, {"code": "forbidden", "message": "no such ticket"}, 502, "node_failed"),
        (401, {"code": "unauthorized", "message": "who?"}, 502, "node_failed"),
        (404, {"code": "not_found", "message": "no such peer"}, 502, "node_failed"),
        (502, {"code": "peer_gone", "message": "gone"}, 502, "node_failed"),
        (400, {"code": "\ud83d", "message": "half \ud83d"}, 400, "invalid_value"),
        (400, {"code": "invalid_api_key", "message": "mine"}, 400, "invalid_value"),
        (302, None, 502, "node_failed"),
        (204, None, 502, "node_failed"),
        (500, None, 502, "node_failed"),
    ],
)
def test_a_refusal_of_the_head_is_an_error_before_the_stream(
    begin: Begin, status: int, body: dict[str, str] | None, seen: int, code: str
) -> None:
    head = FakeHead(status=status, body=json.dumps({"error": body}).encode() if body else b"<html>")
    with pytest.raises(ApiError) as error:
        stream(begin(head))
    assert (error.value.status, error.value.code) == (seen, code)
    assert error.value.param == (body or {}).get("param")
    assert head.is_closed
    assert (row().state, row().error_code) == (ChatSession.State.FAILED, code)


def test_of_a_refusal_nothing_that_the_client_wrote_is_kept_or_logged(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    place = "response_format.json_schema.schema.properties.secret"
    error = {"code": "bad_request", "message": "the pattern 'secret' is empty", "param": place}
    with pytest.raises(ApiError, match="secret") as refused:
        stream(begin(FakeHead(status=400, body=json.dumps({"error": error}).encode())))
    assert refused.value.param == place
    kept = "the parameter can't have this value: response_format.json_schema.schema"
    assert (row().error_code, row().error_message) == ("invalid_value", kept)
    assert kept in caplog.text
    assert "secret" not in caplog.text


def test_an_error_in_the_middle_is_told_in_the_stream(begin: Begin) -> None:
    head = FakeHead(sse(said("a", [7]), {"error": {"code": "node_failed", "message": "layers 6–11 failed"}}))
    text, error, end = stream(begin(head))
    assert text["choices"][0]["delta"]["content"] == "a"
    assert (error["error"]["code"], error["error"]["message"]) == ("node_failed", "layers 6–11 failed")
    assert error["error"]["type"] == "server_error"
    assert end == "data: [DONE]"
    assert head.is_closed
    assert (row().state, row().error_message) == (ChatSession.State.FAILED, "layers 6–11 failed")


def test_a_fault_of_ours_in_the_middle_is_told_in_the_stream_and_not_what_it_was(begin: Begin) -> None:
    class Broken(FakeHead):
        async def __call__(self, request: wire.Request) -> Any:
            async for item in super().__call__(request):
                if isinstance(item, wire.End):
                    raise KeyError("/srv/meshnet/tracker/heads.py")
                yield item

    text, error, end = stream(begin(Broken(sse(said("a", [7])))))
    assert text["choices"][0]["delta"]["content"] == "a"
    assert (error["error"]["code"], end) == ("internal_error", "data: [DONE]")
    assert "KeyError" not in error["error"]["message"]
    assert (row().state, row().error_code) == (ChatSession.State.FAILED, "internal_error")


def test_an_error_in_the_middle_fails_an_unstreamed_chat(begin: Begin) -> None:
    with pytest.raises(ApiError) as error:
        whole(begin(FakeHead(sse(said("a", [7]), {"error": {"code": "busy", "message": "no room"}}))))
    assert (error.value.status, error.value.headers["Retry-After"]) == (503, "5")


def test_what_was_done_before_a_failure_is_recorded(begin: Begin, nodes: list[Node]) -> None:
    report = done([hop_of(nodes[0], 0, 6, "local"), hop_of(nodes[1], 6, 12, "relay")], 3, 1)
    stream(begin(FakeHead(sse(said("a", [7]), report, {"error": {"code": "node_failed", "message": "x"}}))))
    assert row().completion_tokens == 1
    assert [hop.steps for hop in row().hops.all()] == [3, 3]


@pytest.mark.parametrize(
    "items",
    [
        (sse(said("a", [7])),),
        (sse(said("a", [7]), done(), "data: [DONE]"),),
        (b"data: {\n\n",),
        (sse(said("a", [7])), wire.error_response("1", wire.Code.PEER_GONE, "the peer has gone")),
    ],
    ids=["no finish", "done without a finish", "no JSON", "peer gone"],
)
def test_a_stream_that_breaks_off_is_an_error_and_no_answer(begin: Begin, items: tuple[Any, ...]) -> None:
    *_, error, end = stream(begin(FakeHead(*items)))
    assert error["error"]["type"] == "server_error"
    assert end == "data: [DONE]"
    assert row().state == ChatSession.State.FAILED
    ChatSession.objects.all().delete()
    with pytest.raises(ApiError) as refused:
        whole(begin(FakeHead(*items)))
    assert refused.value.status == 502


def test_a_silent_head_ends_the_chat(begin: Begin, settings: Settings) -> None:
    settings.HEAD_SILENCE_S = 0.1
    head = FakeHead(sse(said("a", [7])), asyncio.Event())
    _, error, _ = stream(begin(head))
    assert error["error"]["code"] == "node_failed"
    assert "lost layers 0–5: node head doesn't answer" in error["error"]["message"]
    assert "layers 0–5 on node head, is lost: it said nothing for 0.1 s" in row().error_details
    assert head.is_closed


def test_a_head_that_says_nothing_at_all_ends_the_chat(begin: Begin, settings: Settings) -> None:
    settings.HEAD_SILENCE_S = 0.1

    async def never(request: wire.Request) -> Any:
        await asyncio.Event().wait()
        yield

    chat = replace(begin(FakeHead()), call=never)
    with pytest.raises(ApiError) as error:
        whole(chat)
    assert (error.value.status, error.value.code) == (502, "node_failed")


def test_the_deadline_ends_a_chat_however_busy_its_head_is(begin: Begin) -> None:
    class Busy(FakeHead):
        async def __call__(self, request: wire.Request) -> Any:
            yield wire.Response(request.request_id, 200, {}, stream=True)
            try:
                while True:
                    yield wire.Chunk(request.request_id, b": keepalive\n\n")
                    await asyncio.sleep(0.01)
            finally:
                self.is_closed = True

    head = Busy()
    with pytest.raises(ApiError) as error:
        whole(begin(head, deadline_s=0.2))
    assert (error.value.status, error.value.code) == (504, "deadline_exceeded")
    assert head.is_closed
    assert row().error_code == "deadline_exceeded"


@async_to_sync
async def leave_while_it_waits(begun: list[Chat], heads: list[FakeHead], is_streamed: bool) -> None:
    """Cancels the client's task while the heads have nothing to say, as Django does."""

    async def client() -> None:
        events, completion = proxy.proxy_chats(begun), begun[0].answer.completion
        if not is_streamed:
            await proxy.whole(completion, events)
        await anext(events)
        async for _ in proxy.streamed(completion, events):
            got_some.set()

    got_some = asyncio.Event()
    task = asyncio.create_task(client())
    if is_streamed:
        await got_some.wait()
    while not all(head.requests for head in heads):
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_closes_the_call_and_is_recorded(begin: Begin, is_streamed: bool) -> None:
    head = FakeHead(sse(said("a", [7, 8], prompt_ids=[1, 2, 3])), asyncio.Event())
    leave_while_it_waits([begin(head)], [head], is_streamed)
    assert head.is_closed
    assert row().state == ChatSession.State.CANCELLED
    assert (row().prompt_tokens, row().completion_tokens) == (3, 2)
    assert row().ended is not None
    assert row().error_code == ""


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_client_that_leaves_ends_all_choices(begin_choices: Callable[..., list[Chat]], is_streamed: bool) -> None:
    heads = [FakeHead(sse(said("a", [7])), asyncio.Event()) for _ in range(3)]
    leave_while_it_waits(begin_choices(*heads), heads, is_streamed)
    assert all(head.is_closed for head in heads)
    for session in rows():
        assert (session.state, session.error_message) == (ChatSession.State.CANCELLED, "")
        assert session.ended is not None


def test_a_client_that_leaves_before_any_head_is_asked_ends_all_choices(
    begin_choices: Callable[..., list[Chat]],
) -> None:
    begun = begin_choices(FakeHead(), FakeHead())

    @async_to_sync
    async def leave() -> None:
        task = asyncio.ensure_future(proxy.whole(begun[0].answer.completion, proxy.proxy_chats(begun)))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    leave()
    assert [session.state for session in rows()] == [ChatSession.State.CANCELLED] * 2


def test_a_stream_that_is_closed_between_two_parts_closes_the_call(begin: Begin) -> None:
    head = FakeHead(sse(said("a", [7])), sse(said("b", [8])), asyncio.Event())
    chat = begin(head)

    @async_to_sync
    async def take_one() -> None:
        events = proxy.proxy_chat(chat)
        await anext(events)
        parts = proxy.streamed(chat.answer.completion, events)
        await anext(parts)
        await parts.aclose()  # type: ignore[attr-defined]

    take_one()
    assert head.is_closed
    assert row().state == ChatSession.State.CANCELLED


def test_a_stream_that_nobody_began_to_read_is_recorded_too(begin: Begin) -> None:
    head = FakeHead(sse(said("a", [7])), asyncio.Event())
    chat = begin(head)

    @async_to_sync
    async def drop_it() -> None:
        events = proxy.proxy_chat(chat)
        await anext(events)
        parts = proxy.streamed(chat.answer.completion, events)
        del events, parts
        while not head.is_closed:
            await asyncio.sleep(0)
        await all_is_written()

    drop_it()
    assert row().state == ChatSession.State.CANCELLED


def test_the_first_thing_said_is_that_the_head_has_agreed(begin: Begin) -> None:
    chat = begin(FakeHead(HELLO))

    @async_to_sync
    async def collect() -> list[Event]:
        return [event async for _, event in proxy.proxy_chat(chat)]

    assert collect()[0] == Keepalive()
