"""The chat API over HTTP, with a node's socket on the real switchboard, or a little server where a head listens."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import SyncToAsync, async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.test import AsyncClient
from django.utils import timezone
from pytest_django import Settings

from relay import headers, wire
from relay.hub import hub
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import HELLO, PeerSocket, http_server, said, sse, streams
from tracker.credentials import Credential
from tracker.models import ApiKey, ChatSession, Node, Usage

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
pytestmark = pytest.mark.django_db

HELLOS = streams(HELLO)
Ask = Callable[..., Any]


@pytest.fixture
def ask(make_node: MakeNode, api_key: Credential) -> Ask:
    """Asks a model on one node, whose socket answers `reply`; gives the response, its body, what the node was asked."""
    node = make_node("only")

    @async_to_sync
    async def make(
        body: Any = ASKED,
        reply: Callable[[wire.Request], list[wire.Answer]] = HELLOS,
        path: str = CHAT,
        key: str = api_key.text,
        method: str = "post",
        **sent: str,
    ) -> tuple[Any, bytes, wire.Request | None]:
        socket = PeerSocket(node.peer_id, "tiny")
        socket.reply = reply
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent |= {"Authorization": f"Bearer {key}"} if key else {}
        try:
            send = getattr(AsyncClient(), method)
            arguments = {"data": data, "content_type": "application/json"} if method == "post" else {}
            response = await send(path, headers=sent, **arguments)
            got = b"".join([part async for part in response]) if response.streaming else response.content
        finally:
            socket.leave()
        requests = [frame for frame in socket.frames if isinstance(frame, wire.Request)]
        return response, got, requests[0] if requests else None

    return make


def test_an_answer_through_the_relay(ask: Ask) -> None:
    response, body, request = ask()
    assert response.status_code == 200
    assert json.loads(body)["choices"][0]["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert request.sender == wire.TRACKER
    assert ChatSession.objects.get().state == ChatSession.State.DONE


def test_a_streamed_answer_through_the_relay(ask: Ask) -> None:
    response, body, _ = ask(ASKED | {"stream": True})
    assert response["Content-Type"] == "text/event-stream; charset=utf-8"
    assert (response["Cache-Control"], response["X-Accel-Buffering"]) == ("no-cache", "no")
    assert body.endswith(b"data: [DONE]\n\n")
    assert ChatSession.objects.get().is_streamed


def test_a_completion_has_its_own_form(ask: Ask) -> None:
    told = sse({"choices": [{"text": "upon", "finish_reason": "stop"}], "meshnet": {"ids": [1]}}, "data: [DONE]")
    body = {"model": "tiny", "prompt": ["Once"]}
    _, got, _ = ask(body, streams(told), COMPLETIONS)
    answer = json.loads(got)
    assert (answer["object"], answer["choices"][0]["text"]) == ("text_completion", "upon")
    _, got, _ = ask(body | {"stream": True}, streams(told), COMPLETIONS)
    assert json.loads(got.split(b"\n\n")[0][6:])["choices"] == [
        {"index": 0, "logprobs": None, "finish_reason": "stop", "text": "upon"}
    ]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_several_choices_are_asked_of_the_node_and_come_in_one_answer(ask: Ask, path: str) -> None:
    told = sse({"choices": [{"text": "upon", "finish_reason": "stop"}], "meshnet": {"ids": [1]}}, "data: [DONE]")
    body = {"model": "tiny", "n": 2, "max_tokens": 5} | (
        {"prompt": "Once"} if path == COMPLETIONS else {"messages": ASKED["messages"]}
    )
    _, got, _ = ask(body, streams(told), path)
    assert [choice["index"] for choice in json.loads(got)["choices"]] == [0, 1]
    _, got, _ = ask(body | {"stream": True}, streams(told), path)
    events = [json.loads(one[6:]) for one in got.split(b"\n\n") if one.startswith(b"data: {")]
    assert sorted(event["choices"][0]["index"] for event in events) == [0, 1]
    assert got.count(b"data: [DONE]") == 1
    assert ChatSession.objects.filter(state=ChatSession.State.DONE).count() == 4


def test_nothing_of_the_clients_headers_crosses(ask: Ask) -> None:
    smuggled = {
        "X-Meshnet-Route": "[]",
        "X-Meshnet-Ticket": "mine",
        "X-Meshnet-Epoch": "9",
        "Cookie": "a=b",
        "X-Own": "1",
    }
    _, _, request = ask(**smuggled)
    assert request.headers[headers.EPOCH] == "0"
    assert request.headers[headers.TICKET] != "mine"
    assert {name for name in request.headers if not name.startswith("x-meshnet-")} == {"content-type"}


@pytest.mark.parametrize("key", ["", "wrong", "key_000000000000.aaaaaaaaaaaaaaaaaaaaaaaa"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_without_a_good_key_nothing_is_answered(ask: Ask, key: str, path: str) -> None:
    response, body, request = ask(key=key, path=path)
    assert response.status_code == 401
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert response["WWW-Authenticate"] == "Bearer"
    assert request is None


def test_a_revoked_key_is_told_so(ask: Ask) -> None:
    ApiKey.objects.update(revoked=True)
    _, body, _ = ask()
    assert "revoked" in json.loads(body)["error"]["message"]


def test_an_expired_key_is_told_so(ask: Ask) -> None:
    ApiKey.objects.update(expires=timezone.now())
    response, body, _ = ask()
    assert (response.status_code, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
    assert "expired at" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_left_of_a_keys_limits_is_told_until_nothing_is(ask: Ask, stream: bool) -> None:
    ApiKey.objects.update(requests_per_minute=1, tokens_per_minute=5000)
    response, _, _ = ask(ASKED | {"stream": stream})
    assert (response.status_code, response["x-ratelimit-remaining-requests"]) == (200, "0")
    assert int(response["x-ratelimit-remaining-tokens"]) < 5000
    response, body, request = ask(ASKED | {"stream": stream})
    error = json.loads(body)["error"]
    assert (response.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert (response["x-ratelimit-remaining-requests"], response["content-type"]) == ("0", "application/json")
    assert 0 < int(response["Retry-After"]) <= 60
    assert request is None
    assert ChatSession.objects.count() == 1


def test_each_request_is_in_its_keys_usage(ask: Ask) -> None:
    ask()
    ask(reply=lambda request: [wire.Response(request.request_id, 400, {}, b"{}")])
    usage = Usage.objects.get()
    assert (usage.api_key, usage.requests, usage.failed) == (ApiKey.objects.get(), 2, 1)


def test_a_nodes_key_is_no_api_key(ask: Ask, make_node: MakeNode) -> None:
    response, body, _ = ask(key=make_node("other").key.text)  # type: ignore[attr-defined]
    assert response.status_code == 401
    assert "is no API key: it looks like a node key" in json.loads(body)["error"]["message"]
    _, body, _ = ask(key="key_0123456789ab." + "x" * 43)
    assert "This API key is unknown here" in json.loads(body)["error"]["message"]


def test_keys_can_be_done_without(ask: Ask, settings: Settings) -> None:
    settings.API_KEYS_REQUIRED = False
    response, _, _ = ask(key="")
    assert response.status_code == 200
    assert ChatSession.objects.get().api_key is None


def test_the_key_that_asked_is_recorded(ask: Ask) -> None:
    ask()
    key = ApiKey.objects.get()
    assert ChatSession.objects.get().api_key == key
    assert key.last_used is not None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (ASKED | {"messages": [{"role": "user", "content": "\ud83d"}]}, "messages[0].content"),
        (ASKED | {"max_tokens": 0}, "max_tokens"),
        (ASKED | {"stream": True, "stop": ["a"] * 5}, "stop"),
        (ASKED | {"stream": True, "logprobs": 1}, "logprobs"),
        (ASKED | {"meshnet": {"top_k": -1}}, "meshnet.top_k"),
    ],
)
def test_a_wrong_request_is_an_error_of_openais_shape_before_any_stream(ask: Ask, body: Any, param: str | None) -> None:
    response, got, request = ask(body)
    assert response.status_code == 400
    error = json.loads(got)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert request is None


def test_a_body_over_four_mebibytes_is_refused(ask: Ask) -> None:
    response, body, _ = ask(b" " * (4 * 1024 * 1024 + 1))
    assert response.status_code == 413
    assert json.loads(body)["error"]["code"] == "too_large"


def test_a_body_beyond_djangos_own_limit_is_read(ask: Ask) -> None:
    response, _, _ = ask(json.dumps(ASKED).encode() + b" " * (3 * 1024 * 1024))
    assert response.status_code == 200


def test_another_method_is_refused_in_openais_shape(ask: Ask) -> None:
    response, body, _ = ask(method="get")
    assert (response.status_code, response["Allow"]) == (405, "POST")
    assert json.loads(body)["error"]["code"] == "method_not_allowed"


def test_a_head_that_refuses_gives_the_stream_a_status(ask: Ask) -> None:
    def refuse(request: wire.Request) -> list[wire.Answer]:
        error = {"error": {"code": "context_length_exceeded", "message": "too long", "param": "messages"}}
        return [wire.Response(request.request_id, 400, {}, json.dumps(error).encode())]

    response, body, _ = ask(ASKED | {"stream": True}, refuse)
    assert response.status_code == 400
    assert json.loads(body)["error"]["param"] == "messages"


def test_a_model_that_cannot_answer_says_why_and_when_to_come_back(
    make_node: MakeNode, api_key: Credential, settings: Settings
) -> None:
    make_node("away")

    @async_to_sync
    async def post() -> Any:
        sent = {"Authorization": f"Bearer {api_key.text}"}
        return await AsyncClient().post(CHAT, ASKED, content_type="application/json", headers=sent)

    response = post()
    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert "layers 0–11 have no node online" in response.json()["error"]["message"]


def head_that_listens(handler: Any) -> None:
    asked = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
    assert asked["messages"][0]["content"] == "Hi"
    assert handler.headers[headers.TICKET]
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    handler.wfile.write(b": keepalive\n\n" + HELLO)


@pytest.fixture
def listening(make_node: MakeNode) -> Callable[[str], Node]:
    def make(url: str) -> Node:
        until = timezone.now() + timedelta(seconds=5)
        reach = {"endpoint": url, "endpoint_address": "127.0.0.1", "endpoint_proved_until": until}
        return make_node("listening", uses_relay=False, **reach)

    return make


@async_to_sync
async def post(key: Credential, **fields: Any) -> tuple[int, bytes]:
    sent = {"Authorization": f"Bearer {key.text}"}
    response: Any = await AsyncClient().post(CHAT, ASKED | fields, content_type="application/json", headers=sent)
    return response.status_code, b"".join([part async for part in response]) if response.streaming else response.content


@pytest.mark.parametrize("stream", [True, False])
def test_a_head_that_listens_is_asked_by_http(
    listening: Callable[[str], Node], api_key: Credential, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # of the environment: not for nodes
    with http_server(head_that_listens) as url:
        listening(url)
        status, body = post(api_key, stream=stream)
    assert status == 200
    assert b"lo" in body


def test_a_head_that_listens_no_more_is_an_error(listening: Callable[[str], Node], api_key: Credential) -> None:
    with http_server(head_that_listens) as url:
        listening(url)
    status, body = post(api_key)
    assert status == 502
    assert json.loads(body)["error"]["code"] == "node_failed"


def test_a_redirect_of_a_head_is_not_followed(listening: Callable[[str], Node], api_key: Credential) -> None:
    asked = []

    def redirect(handler: Any) -> None:
        asked.append(handler.path)
        handler.send_response(307)
        handler.send_header("location", "/elsewhere")
        handler.end_headers()

    with http_server(redirect) as url:
        listening(url)
        status, _ = post(api_key)
    assert (status, asked) == (502, [CHAT])


class Browser:
    """A raw ASGI client, which can leave."""

    def __init__(self, key: Credential, body: dict[str, Any]) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"authorization", f"Bearer {key.text}".encode()),
                (b"content-type", b"application/json"),
            ],
        }
        self.body = json.dumps(body).encode()
        self.asgi: Any = ApplicationCommunicator(get_asgi_application(), scope)  # type: ignore[no-untyped-call]

    async def ask(self) -> None:
        await self.asgi.send_input({"type": "http.request", "body": self.body})

    async def part(self) -> dict[str, Any]:
        received: dict[str, Any] = await self.asgi.receive_output(10)
        return received

    async def leave(self) -> None:
        await self.asgi.send_input({"type": "http.disconnect"})
        await self.asgi.wait(10)


@pytest.fixture
def lone_node(make_node: MakeNode) -> Node:
    return make_node("only")


async def state() -> str:
    return (await ChatSession.objects.aget()).state


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("moment", ["before the head agrees", "in the stream", "unstreamed"])
async def test_a_client_that_leaves_cancels_the_head_at_once(
    transactional_db: None, lone_node: Node, api_key: Credential, moment: str
) -> None:
    socket = PeerSocket(lone_node.peer_id, "tiny")
    begun = streams(b": keepalive\n\n", sse(said("a", [7])))
    socket.reply = lambda request: [] if moment == "before the head agrees" else begun(request)[:-1]
    client = Browser(api_key, ASKED | {"stream": moment != "unstreamed"})
    await client.ask()
    await asyncio.wait_for(socket.is_asked.wait(), 10)
    if moment == "in the stream":
        assert (await client.part())["status"] == 200
        while b"content" not in (await client.part())["body"]:
            pass
    assert await state() == ChatSession.State.RUNNING
    await client.leave()
    await asyncio.wait_for(socket.is_cancelled.wait(), 10)
    assert await state() == ChatSession.State.CANCELLED
    socket.leave()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_cancels_every_choice(
    transactional_db: None, lone_node: Node, api_key: Credential, is_streamed: bool
) -> None:
    socket = PeerSocket(lone_node.peer_id, "tiny")
    socket.reply = lambda request: streams(sse(said("a", [7])))(request)[:-1]
    client = Browser(api_key, ASKED | {"stream": is_streamed, "n": 3})
    await client.ask()
    if is_streamed:
        while b"content" not in (await client.part()).get("body", b""):
            pass
    async with asyncio.timeout(10):
        while len([frame for frame in socket.frames if isinstance(frame, wire.Request)]) < 3:
            await asyncio.sleep(0.001)
        await client.leave()
        while len([frame for frame in socket.frames if isinstance(frame, wire.Cancel)]) < 3:
            await asyncio.sleep(0.001)
    states = [session.state async for session in ChatSession.objects.all()]
    assert states == [ChatSession.State.CANCELLED] * 3
    socket.leave()


@pytest.mark.django_db(transaction=True)
def test_a_process_that_was_told_to_stop_begins_no_chat_on_a_connection_from_before(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "stops_at", time.monotonic() + 30)
    response, body, asked = ask()
    assert (response.status_code, json.loads(body)["error"]["code"], asked) == (503, "draining", None)
    assert response["Retry-After"]
    assert not ChatSession.objects.exists()


@pytest.mark.django_db(transaction=True)
async def test_open_chats_hold_no_thread(transactional_db: None, lone_node: Node, api_key: Credential) -> None:
    before = _request_threads()
    socket = PeerSocket(lone_node.peer_id, "tiny")
    socket.reply = lambda request: streams(sse(said("a", [7])))(request)[:-1]
    clients = [Browser(api_key, ASKED | {"stream": is_streamed}) for is_streamed in (True, False) * 8]
    for number, client in enumerate(clients):
        await client.ask()
        while len([frame for frame in socket.frames if isinstance(frame, wire.Request)]) <= number:
            await asyncio.sleep(0.001)
    async with asyncio.timeout(10):
        while _request_threads() - before:
            await asyncio.sleep(0.01)
    assert await ChatSession.objects.filter(state=ChatSession.State.RUNNING).acount() == len(clients)
    for client in clients:
        await client.leave()
    assert await ChatSession.objects.filter(state=ChatSession.State.CANCELLED).acount() == len(clients)
    socket.leave()


def _request_threads() -> set[threading.Thread]:
    """Of executors, but for the one that all share which have no request."""
    shared = SyncToAsync.single_thread_executor._threads
    return {thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name} - shared
