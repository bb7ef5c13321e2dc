from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tests.tracker.finished import make_finished, make_survivor
from tests.tracker.people import client_of
from tracker.credentials import Credential
from tracker.hopreports import PERCENTILES
from tracker.models import ApiKey, ChatSession, Node

pytestmark = pytest.mark.django_db


@pytest.fixture
def session(make_node: MakeNode, connect: Callable[[Node], None]) -> ChatSession:
    return make_finished(make_node, connect)


@pytest.fixture
def survivor(session: ChatSession) -> ChatSession:
    make_survivor(session)
    return session


@pytest.mark.parametrize(
    "path", ["/sessions", "/sessions?live", "/sessions.json", "/sessions/chatcmpl-abc", "/sessions/chatcmpl-abc.json"]
)
def test_strangers_are_sent_to_the_login(session: ChatSession, path: str) -> None:
    response = Client().get(path)
    assert response.status_code == 302
    assert response["Location"].startswith("/login?next=")


@pytest.mark.parametrize("path", ["/sessions.json", "/sessions/chatcmpl-abc.json"])
def test_json_is_for_those_who_may_see_the_dashboard(session: ChatSession, path: str) -> None:
    assert [client_of(role).get(path).status_code for role in ("nobody", "viewer", "superuser")] == [403, 200, 200]


@pytest.mark.parametrize("path", ["/sessions", "/docs", "/sessions.json", "/sessions/chatcmpl-abc", "/sessions/a.json"])
def test_nothing_can_be_posted_to_a_page(path: str) -> None:
    assert Client(enforce_csrf_checks=True).post(path).status_code == 405


def test_json_tells_what_a_session_went_on_without(operator: Client, survivor: ChatSession) -> None:
    story = operator.get("/sessions/chatcmpl-abc.json").json()
    assert [hop["node"] for hop in story["hops"]] == ["node-a", "node-c"]
    [earlier] = story["earlier_routes"]
    assert (earlier["epoch"], [hop["node"] for hop in earlier["hops"]]) == (0, ["node-a", "node-b"])
    [failover] = story["failovers"]
    assert failover.pop("at")
    assert failover == {
        "epoch": 1,
        "kind": "hop",
        "node": "node-b",
        "start_layer": 6,
        "end_layer": 12,
        "layers": "layers 6–11",
        "code": "node_failed",
        "cause": "<b>no path works",
        "reported_by": "node-a",
        "instead": ["node-c"],
        "after_s": 2.0,
        "position": 17,
        "answer_position": 8,
        "resume_ms": 812.4,
        "kept": "activations",
        "replayed_tokens": 16,
        "replay_compute_ms": 31.6,
    }


def test_json_tells_the_same(operator: Client, session: ChatSession) -> None:
    story = operator.get("/sessions/chatcmpl-abc.json").json()
    assert (story["state"], story["completion_tokens"], story["tokens_per_s"]) == ("done", 21, 10)
    assert story["hops"][1] == {
        "node": "node-b",
        "start_layer": 6,
        "end_layer": 12,
        "layers": "layers 6–11",
        "path": "relay",
        "steps": 21,
        "ms_per_token": 20.0,
        "ms_total": 420.0,
        "compute_ms": 210.0,
        "queue_ms": 1.0,
        **dict.fromkeys(PERCENTILES),
    }
    assert story.pop("last_steps") == []
    assert story.pop("choices") == [{"choice": 0, "session": "01234567", "state": "done"}]
    assert operator.get("/sessions.json").json()["sessions"] == [story]


@pytest.fixture
def second_choice(session: ChatSession) -> ChatSession:
    """Made for the same request, which said whom and what it was for."""
    ChatSession.objects.update(user="<i>ann", request_id="req_1", metadata={"items": "<i>seven"})
    made = ChatSession.objects.get()
    made.pk, made.choice, made.session_id, made.state = None, 1, "fedcba9876543210" * 2, ChatSession.State.CANCELLED
    made.error_message = "another choice of the completion failed: no room"
    made.save()
    return made


def test_json_tells_of_each_choice(operator: Client, second_choice: ChatSession) -> None:
    first, second = (operator.get(f"/sessions/chatcmpl-abc{path}.json").json() for path in ("", "/1"))
    assert (first["choice"], second["choice"]) == (0, 1)
    assert first["choices"] == second["choices"]
    assert [(one["session"], one["state"]) for one in first["choices"]] == [
        ("01234567", "done"),
        ("fedcba98", "cancelled"),
    ]


def test_the_key_that_asked_may_read_its_session(session: ChatSession, api_key: Credential) -> None:
    def get() -> Any:
        sent = {"Authorization": f"Bearer {api_key.text}"}
        return Client().get("/sessions/chatcmpl-abc.json", headers=sent)

    assert (get().status_code, get().json()["error"]["code"]) == (404, "unknown_url")
    session.api_key = ApiKey.objects.get()
    session.save()
    assert get().json()["id"] == "chatcmpl-abc"
    wrong = Client().get("/sessions/chatcmpl-abc/1.json", headers={"Authorization": "Bearer x"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
    for end in ({"revoked": True}, {"revoked": False, "expires": timezone.now()}):
        ApiKey.objects.update(**end)
        assert get().status_code == 401


def test_a_session_that_is_not_there_is_not_found(operator: Client) -> None:
    assert operator.get("/sessions/nothing").status_code == 404
    assert operator.get("/sessions/nothing.json").status_code == 404
