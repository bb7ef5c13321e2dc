"""What the chat page asks: who may, and that it goes the way the API's chats go."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient

from relay import wire
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import HELLO, PeerSocket, streams
from tests.tracker.people import person
from tracker.models import ChatSession, Node, Usage

PATH = "/chat/answer"
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
pytestmark = pytest.mark.django_db


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node("only")


@pytest.fixture
def users(db: None) -> dict[str, Any]:
    return {role: person(role, role) for role in ("nobody", "viewer", "operator", "admin")}


@async_to_sync
async def post(node: Node, user: Any, body: Any = ASKED, **client: Any) -> tuple[Any, str, wire.Request | None]:
    """The response, what came, and what the node was asked."""
    browser = AsyncClient(**client)
    if user:
        await browser.aforce_login(user)
    socket = PeerSocket(node.peer_id, "tiny")
    socket.reply = streams(HELLO)
    try:
        response: Any = await browser.post(PATH, json.dumps(body), content_type="application/json")
        got = b"".join([part async for part in response]) if response.streaming else response.content
    finally:
        socket.leave()
    asked = [frame for frame in socket.frames if isinstance(frame, wire.Request)]
    return response, got.decode(), asked[0] if asked else None


def test_an_operator_is_answered_as_by_the_api(node: Node, users: dict[str, Any]) -> None:
    response, got, _ = post(node, users["operator"])
    assert (response.status_code, response["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    events = [json.loads(one[6:]) for one in got.split("\n\n") if one.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == "Hello"
    assert got.endswith("data: [DONE]\n\n")
    assert response["X-Completion-Id"] == events[0]["id"]


def test_the_session_is_the_users_and_no_keys(node: Node, users: dict[str, Any]) -> None:
    post(node, users["operator"], ASKED | {"user": "somebody else", "n": 3, "stream": False})
    session = ChatSession.objects.get()
    assert (session.user, session.api_key, session.is_streamed) == ("operator", None, True)
    assert session.state == ChatSession.State.DONE
    assert Usage.objects.get().api_key is None


@pytest.mark.parametrize("group", ["", "nobody", "viewer"])
def test_who_may_not_chat_is_told_what_to_do(node: Node, users: dict[str, Any], group: str) -> None:
    response, got, asked = post(node, users.get(group))
    assert (response.status_code, asked) == (403, None)
    words = json.loads(got)["error"]["message"]
    assert ("ask an admin of this site for the operator group" if group else "Log in again") in words
    assert not ChatSession.objects.exists()


def test_a_post_from_another_sites_page_is_refused(node: Node, users: dict[str, Any]) -> None:
    response, _, asked = post(node, users["operator"], enforce_csrf_checks=True)
    assert (response.status_code, asked) == (403, None)


def test_nothing_but_a_post_is_taken(node: Node, users: dict[str, Any]) -> None:
    @async_to_sync
    async def get() -> Any:
        browser = AsyncClient()
        await browser.aforce_login(users["operator"])
        return await browser.get(PATH)

    assert get().status_code == 405


def test_what_cannot_be_asked_is_said_in_words(node: Node, users: dict[str, Any]) -> None:
    response, got, _ = post(node, users["operator"], ASKED | {"model": "unheard-of"})
    assert response.status_code == 404
    assert "The model 'unheard-of' does not exist here" in json.loads(got)["error"]["message"]
    response, got, _ = post(node, users["operator"], ASKED | {"temperature": 9})
    assert (response.status_code, json.loads(got)["error"]["param"]) == (400, "temperature")
