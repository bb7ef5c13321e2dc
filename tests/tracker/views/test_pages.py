from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tracker.credentials import Credential
from tracker.models import ApiKey, ChatSession, Failover, LanguageModel, Node, SessionHop

pytestmark = pytest.mark.django_db


@pytest.fixture
def session(make_node: MakeNode, connect: Callable[[Node], None], model: LanguageModel) -> ChatSession:
    started = timezone.now() - timedelta(seconds=5)
    made = ChatSession.objects.create(
        session_id="0123456789abcdef" * 2,
        completion_id="chatcmpl-abc",
        model=model,
        seed=1,
        state=ChatSession.State.DONE,
        started=started,
        ended=started + timedelta(seconds=3),
        completion_tokens=21,
        prompt_tokens=9,
        ttft_ms=1000.0,
        finish_reason="length",
    )
    for position, (name, start, end, path) in enumerate([("node-a", 0, 6, "local"), ("node-b", 6, 12, "relay")]):
        node = make_node(name, start, end)
        connect(node)
        times = {"steps": 21, "ms_total": 420.0, "compute_ms": 210.0, "queue_ms": 1.0}
        SessionHop.objects.create(
            session=made,
            position=position,
            node=node,
            node_name=name,
            start_layer=start,
            end_layer=end,
            path=path,
            **times,
        )
    return made


@pytest.mark.parametrize(
    "path", ["/sessions", "/sessions?live", "/sessions.json", "/sessions/chatcmpl-abc", "/sessions/chatcmpl-abc.json"]
)
def test_strangers_are_sent_to_the_login(session: ChatSession, path: str) -> None:
    response = Client().get(path)
    assert response.status_code == 302
    assert response["Location"].startswith("/login?next=")


def test_a_session_tells_how_many_drafts_were_right(operator: Client, session: ChatSession) -> None:
    assert "guessed" not in operator.get("/sessions/chatcmpl-abc").content.decode()
    ChatSession.objects.update(drafted_tokens=9, accepted_tokens=6)
    assert "6 of 9 guessed tokens accepted" in operator.get("/sessions/chatcmpl-abc").content.decode()
    story = operator.get("/sessions/chatcmpl-abc.json").json()
    assert (story["drafted_tokens"], story["accepted_tokens"]) == (9, 6)


@pytest.mark.parametrize("path", ["/sessions", "/docs", "/sessions.json", "/sessions/chatcmpl-abc", "/sessions/a.json"])
def test_nothing_can_be_posted_to_a_page(path: str) -> None:
    assert Client(enforce_csrf_checks=True).post(path).status_code == 405


def test_a_session_whose_client_left_says_so(operator: Client, session: ChatSession) -> None:
    assert "client left" not in operator.get("/sessions/chatcmpl-abc").content.decode()
    ChatSession.objects.update(state=ChatSession.State.CANCELLED)
    assert "Its client left before the answer was whole." in operator.get("/sessions/chatcmpl-abc").content.decode()
    ChatSession.objects.update(error_message="another choice of the completion failed: it is lost")
    assert "client left" not in operator.get("/sessions/chatcmpl-abc").content.decode()


def test_an_empty_site_tells_the_next_step(operator: Client, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://mesh.example.org"
    page = operator.get("/sessions").content.decode()
    assert "python manage.py createjointoken" in page
    assert "python manage.py runnode --tracker https://mesh.example.org --join-token TOKEN" in page


def test_a_site_nobody_has_asked_tells_how_to_ask(operator: Client, make_node: MakeNode, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://mesh.example.org"
    make_node("node-a")
    page = operator.get("/sessions").content.decode()
    assert "python manage.py createapikey" in page
    assert "curl https://mesh.example.org/v1/chat/completions" in page


def test_the_list_shows_models_nodes_and_sessions(operator: Client, session: ChatSession, make_node: MakeNode) -> None:
    make_node("node-c", 0, 12)
    page = operator.get("/sessions").content.decode()
    for shown in (
        "01234567",
        "node-a → node-b",
        "layers 6–11",
        "answers",
        "offline",
        "its socket to the relay is closed",
    ):
        assert shown in page
    assert session.session_id not in page


def test_a_model_that_cannot_answer_says_what_is_missing(operator: Client, make_node: MakeNode) -> None:
    make_node("node-a", 0, 6)
    assert "layers 0–11 have no node online" in operator.get("/sessions").content.decode()


def test_one_session_has_its_route_and_hop_table(operator: Client, session: ChatSession) -> None:
    page = operator.get("/sessions/chatcmpl-abc").content.decode()
    for shown in ("01234567", "layers 0–5", "layers 6–11", "local", "relay", "20.0", "210.0", "length", "9 tokens"):
        assert shown in page
    assert session.session_id not in page


@pytest.mark.parametrize("path", ["/sessions", "/sessions/chatcmpl-abc"])
def test_a_page_refreshes_itself_by_its_live_part(operator: Client, session: ChatSession, path: str) -> None:
    page, live = operator.get(path), operator.get(path, {"live": ""})
    assert 'id="live" data-every-ms="2000"' in page.content.decode()
    assert "tracker/live.js" in page.content.decode()
    assert "<html" not in live.content.decode()
    assert live.content.decode().strip() in page.content.decode()
    assert live["Cache-Control"] == "no-store"


def test_pages_take_nothing_from_elsewhere(operator: Client, session: ChatSession) -> None:
    page = operator.get("/sessions").content.decode()
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://127.0.0.1:8000", "")
    assert "https://" not in page


def test_names_are_escaped(operator: Client, session: ChatSession) -> None:
    SessionHop.objects.update(node_name="<script>alert(1)</script>")
    session.error_message = session.error_code = "<b>"
    session.save()
    for path in ("/sessions", "/sessions/chatcmpl-abc"):
        page = operator.get(path).content.decode()
        assert "<script>alert" not in page
        assert "<b>" not in page


@pytest.fixture
def survivor(session: ChatSession, make_node: MakeNode) -> ChatSession:
    """The session, once it has gone on without its last node."""
    lost = Node.objects.get(name="node-b")
    ChatSession.objects.update(epoch=1)
    layers = {"start_layer": 6, "end_layer": 12}
    for position, name, start, end in [(0, "node-a", 0, 6), (1, "node-c", 6, 12)]:
        hop = {"position": position, "node_name": name, "start_layer": start, "end_layer": end}
        SessionHop.objects.create(session=session, epoch=1, **hop)
    Failover.objects.create(
        session=session,
        epoch=1,
        kind=Failover.Kind.HOP,
        node=lost,
        node_name="node-b",
        reported_by=Node.objects.get(name="node-a"),
        code="node_failed",
        cause="<b>no path works",
        position=17,
        at=session.started + timedelta(seconds=2),
        resume_ms=812.4,
        kept=Failover.Kept.ACTIVATIONS,
        replayed_tokens=16,
        replay_compute_ms=31.6,
        **layers,
    )
    return session


def test_a_session_tells_what_it_went_on_without(operator: Client, survivor: ChatSession) -> None:
    page = operator.get("/sessions/chatcmpl-abc").content.decode()
    for shown in (
        "node-b, layers 6–11",
        "node_failed: &lt;b&gt;no path works",
        "said by node-a, at token 8 of the answer",
        "<td>node-c</td>",
        "812 ms",
        "16 tokens from kept activations, 32 ms of computing",
    ):
        assert shown in page
    page = operator.get("/sessions").content.decode()
    assert "node-a → node-c <small>after 1 failover</small>" in page


def test_while_the_prompts_tokens_are_unknown_a_failovers_place_is_told_with_them(
    operator: Client, survivor: ChatSession
) -> None:
    ChatSession.objects.update(prompt_tokens=None)
    page = operator.get("/sessions/chatcmpl-abc").content.decode()
    assert "at token 17 of prompt and answer" in page


def test_a_head_that_the_site_lost_is_told_as_such(operator: Client, survivor: ChatSession) -> None:
    Failover.objects.update(kind=Failover.Kind.HEAD, reported_by=None, kept="", position=None)
    page = operator.get("/sessions/chatcmpl-abc").content.decode()
    assert "layers 6–11 (head)" in page
    assert "seen by the site</small>" in page


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
    }
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


def test_each_choice_of_an_answer_has_a_page_with_the_way_to_the_others(
    operator: Client, second_choice: ChatSession
) -> None:
    first, second = (operator.get(f"/sessions/chatcmpl-abc{path}").content.decode() for path in ("", "/1"))
    assert ("01234567" in first, "fedcba98" in first) == (True, False)
    assert ("01234567" in second, "fedcba98" in second) == (False, True)
    assert '<a href="/sessions/chatcmpl-abc/1">1</a> <span class="cancelled">' in first
    assert '<a href="/sessions/chatcmpl-abc/0">0</a> <span class="done">' in second
    assert '<p class="bad">another choice of the completion failed: no room</p>' in second
    assert operator.get("/sessions/chatcmpl-abc/2").status_code == 404
    listed = operator.get("/sessions").content.decode()
    assert listed.index("01234567") < listed.index("fedcba98")
    assert "<small>choice 1</small>" in listed
    assert "choice 0" not in listed


def test_json_tells_of_each_choice(operator: Client, second_choice: ChatSession) -> None:
    first, second = (operator.get(f"/sessions/chatcmpl-abc{path}.json").json() for path in ("", "/1"))
    assert (first["choice"], second["choice"]) == (0, 1)
    assert first["choices"] == second["choices"]
    assert [(one["session"], one["state"]) for one in first["choices"]] == [
        ("01234567", "done"),
        ("fedcba98", "cancelled"),
    ]


def test_a_session_tells_what_the_client_wrote_beside_its_request(operator: Client, second_choice: ChatSession) -> None:
    page = operator.get("/sessions/chatcmpl-abc").content.decode()
    for shown in ("<dd>&lt;i&gt;ann</dd>", "<dt>items</dt><dd>&lt;i&gt;seven</dd>", "<code>req_1</code>"):
        assert shown in page
    story = operator.get("/sessions/chatcmpl-abc.json").json()
    assert (story["user"], story["request_id"], story["metadata"]) == ("<i>ann", "req_1", {"items": "<i>seven"})


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


def test_the_list_needs_as_many_queries_for_many_sessions_as_for_one(
    operator: Client, session: ChatSession, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        made = ChatSession.objects.get(pk=session.pk)
        made.pk, made.session_id, made.completion_id = None, f"{number:032x}", f"chatcmpl-{number}"
        made.save()
        SessionHop.objects.create(session=made, position=0, node_name="x", start_layer=0, end_layer=12, ms_total=1.0)
    with django_assert_max_num_queries(12):
        operator.get("/sessions")
