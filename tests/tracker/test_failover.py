"""A chat whose head is lost, over nodes' sockets on the real switchboard: its answer, and the session's story."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.utils import timezone

from relay import wire
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import PeerSocket, done, said, sse
from tracker import answers, chats, proxy
from tracker.models import ChatSession
from tracker.openai import read_chat

PROMPT = [1, 2, 3, 4, 5]
WORDS = ["Hel", "lo ", "wor", "ld"]
pytestmark = pytest.mark.usefixtures("ticket_key")

Script = Callable[[wire.Request], list[wire.Answer]]


def event(number: int) -> dict[str, Any]:
    """The head's `number`th event of the whole answer."""
    own = {"prompt_ids": PROMPT} if number == 0 else {}
    reason = "stop" if number == len(WORDS) - 1 else None
    return said(WORDS[number], [10 + number], reason, position=len(PROMPT) + number, **own)


def tells(request: wire.Request, *items: Any) -> list[wire.Answer]:
    answer: list[wire.Answer] = [wire.Response(request.request_id, 200, {}, stream=True)]
    return answer + [wire.Chunk(request.request_id, sse(item)) for item in items]


def from_where_it_was(request: wire.Request) -> list[wire.Answer]:
    """A head that works."""
    resume = json.loads(request.body).get("meshnet", {}).get("resume", {"ids": []})
    rest = [event(number) for number in range(len(resume["ids"]), len(WORDS))]
    report = done(prompt_tokens=len(PROMPT), completion_tokens=len(WORDS))
    return [*tells(request, *rest, report, "data: [DONE]"), wire.End(request.request_id)]


def gone(request: wire.Request) -> list[wire.Answer]:
    return [wire.error_response(request.request_id, wire.Code.PEER_GONE, "the peer has gone")]


def after(num_events: int, then: Script = gone) -> Script:
    return lambda request: tells(request, *map(event, range(num_events))) + then(request)


class Mesh:
    """Two heads with sockets, and a tail for both."""

    def __init__(self, make_node: MakeNode) -> None:
        self.rows = {name: make_node(name, 0, 6) for name in ("one", "two")}
        self.tail = make_node("tail", 6, 12)
        self.asked: list[tuple[str, wire.Request]] = []
        self.scripts: dict[str, list[Script]] = {"one": [], "two": []}
        self.online = ["one", "two"]

    @async_to_sync
    async def chat(self, is_streamed: bool = True, **fields: Any) -> list[Any] | dict[str, Any]:
        """What the client gets. The heads are asked as they come, each by its script; the last of it is kept."""
        sockets = {name: PeerSocket(self.rows[name].peer_id, "tiny") for name in self.online}
        tail = PeerSocket(self.tail.peer_id, "tiny")
        for name, socket in sockets.items():
            socket.reply = self._replies(name)
        try:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": is_streamed} | fields
            asked = read_chat(json.dumps(body).encode())
            chat = await sync_to_async(chats.begin)(asked, answers.CHAT, None, timezone.now())
            events = proxy.proxy_chat(chat)
            if not is_streamed:
                return await proxy.whole(chat, events)
            await anext(events)
            text = b"".join([part async for part in proxy.streamed(chat, events)]).decode()
        finally:
            for socket in [*sockets.values(), tail]:
                socket.leave()
        parts = text.removesuffix("\n\n").split("\n\n")
        return [json.loads(one[6:]) if one.startswith("data: {") else one for one in parts]

    def _replies(self, name: str) -> Script:
        def reply(request: wire.Request) -> list[wire.Answer]:
            self.asked.append((name, request))
            scripts = self.scripts[name]
            return (scripts.pop(0) if len(scripts) > 1 else scripts[0])(request)

        return reply

    def first_is(self, script: Script, then: Script = from_where_it_was) -> None:
        """Whichever of the two is asked first does this; the other does that."""

        def by_order(request: wire.Request) -> list[wire.Answer]:
            return script(request) if len(self.asked) == 1 else then(request)

        self.scripts = {"one": [by_order], "two": [by_order]}


@pytest.fixture
def mesh(make_node: MakeNode) -> Mesh:
    return Mesh(make_node)


def text_of(parts: list[Any]) -> str:
    return "".join(part["choices"][0]["delta"].get("content", "") for part in parts if part.get("choices"))


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("num_events", range(len(WORDS) + 1))
def test_wherever_a_head_is_lost_the_answer_is_the_same(mesh: Mesh, num_events: int, is_streamed: bool) -> None:
    mesh.first_is(after(num_events))
    got = mesh.chat(is_streamed, **({"stream_options": {"include_usage": True}} if is_streamed else {}))
    session = ChatSession.objects.get()
    assert session.state == ChatSession.State.DONE
    assert session.completion_tokens == len(WORDS)
    usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    if isinstance(got, dict):
        assert got["choices"][0]["message"]["content"] == "Hello world"
        assert (got["choices"][0]["finish_reason"], got["usage"]) == ("stop", usage)
        return
    chunks = [part for part in got if isinstance(part, dict)]
    assert text_of(chunks) == "Hello world"
    assert [chunk["usage"] for chunk in chunks if chunk.get("usage")] == [usage]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert ["role" in choice["delta"] for choice in choices] == [True] + [False] * (len(choices) - 1)
    assert got[-1] == "data: [DONE]"
