from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from tests.tracker.conftest import MakeNode
from tests.tracker.crowd import crowd
from tests.tracker.finished import make_finished, make_survivor
from tests.tracker.people import client_of
from tracker.models import ChatSession, Node, SessionHop
from tracker.models.sessions import LOST_AFTER

pytestmark = pytest.mark.django_db


@pytest.fixture
def session(make_node: MakeNode, connect: Callable[[Node], None]) -> ChatSession:
    return make_finished(make_node, connect)


@pytest.fixture
def viewer(db: None) -> Client:
    return client_of("viewer")


def shown(viewer: Client, **params: str) -> str:
    return viewer.get("/sessions", params | {"live": ""}).content.decode()


def another(session: ChatSession, **fields: Any) -> ChatSession:
    number = ChatSession.objects.count()
    row = {"session_id": f"{number:032x}", "completion_id": f"chatcmpl-{number}", "started": session.started}
    kept = {"model": session.model, "seed": 1, "state": ChatSession.State.DONE}
    return ChatSession.objects.create(**(kept | row | fields))


def test_a_session_is_told_in_a_row(viewer: Client, session: ChatSession) -> None:
    page = shown(viewer)
    for words in ("01234567", 'class="state good">done', ">tiny<", ">21<", ">10.0<", ">1.0 s<", "node-a → node-b"):
        assert words in page
    assert session.session_id not in page


def test_a_session_that_runs_is_told_as_far_as_is_known(viewer: Client, session: ChatSession) -> None:
    now = timezone.now()
    ChatSession.objects.update(
        state=ChatSession.State.RUNNING, ended=None, last_news=now, started=now - timedelta(seconds=3)
    )
    page = shown(viewer)
    assert '<a href="?state=running">1 session</a> now' in page
    assert ">10.0<" in page, "tokens a second until the last news"
    ChatSession.objects.update(cancelled_by="ann")
    assert 'class="state busy">ending' in shown(viewer)
    ChatSession.objects.update(last_news=now - LOST_AFTER)
    page = shown(viewer)
    assert "no session runs now" in page
    assert 'class="state bad">lost' in page


def test_what_it_survived_is_counted(viewer: Client, session: ChatSession) -> None:
    make_survivor(session)
    assert "node-a → node-c <small>after 1 failover</small>" in shown(viewer)


def test_the_newest_comes_first_and_choices_in_order(viewer: Client, session: ChatSession) -> None:
    another(session, completion_id=session.completion_id, choice=1)
    newer = another(session, started=session.started + timedelta(seconds=1))
    page = shown(viewer)
    order = [
        page.index(f"/sessions/{path}") for path in (f"{newer.completion_id}/0", "chatcmpl-abc/0", "chatcmpl-abc/1")
    ]
    assert order == sorted(order)
    assert "<small>choice 1</small>" in page
    assert "choice 0" not in page


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"state": "done"}, "done"),
        ({"state": "running"}, "running"),
        ({"state": "failed"}, "failed lost"),
        ({"state": "cancelled"}, "cancelled"),
        ({"state": "lost"}, "lost"),
        ({"state": "survived"}, "running"),
        ({"state": "quux"}, "all"),
        ({"model": "tiny"}, "all"),
        ({"model": "tiny\0"}, "all"),
        ({"model": "large"}, ""),
        ({"q": "chatcmpl-abc"}, "done"),
        ({"q": "01234567"}, "done"),
        ({"q": "0123456789"}, ""),
        ({"q": "req_7"}, "failed"),
        ({"q": "ANN"}, "cancelled"),
        ({"q": "node-b"}, "done"),
        ({"q": "node-b chatcmpl"}, "done"),
        ({"q": "node-b quux"}, ""),
        ({"q": "a\0b"}, ""),
        ({"q": "x" * 5000}, ""),
        ({"q": "node-b", "state": "failed"}, ""),
    ],
)
def test_it_is_filtered_by_state_model_and_text(
    viewer: Client, session: ChatSession, params: dict[str, str], found: str
) -> None:
    now = timezone.now()
    of_kind = {
        "done": session,
        "running": another(session, state="running", last_news=now, epoch=2),
        "failed": another(session, state="failed", request_id="req_7", error_code="busy"),
        "cancelled": another(session, state="cancelled", cancelled_by="Ann"),
        "lost": another(session, state="failed", error_code="lost"),
    }
    page = shown(viewer, **params)
    wanted = set(of_kind) if found == "all" else set(found.split())
    assert {kind for kind, one in of_kind.items() if f"/sessions/{one.completion_id}/" in page} == wanted


def test_a_list_without_any_says_which_way_out(viewer: Client, session: ChatSession) -> None:
    assert "No session is like this." in shown(viewer, q="nothing")


def test_a_site_that_nobody_has_asked_says_how_to_ask(viewer: Client, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://mesh.example.org"
    page = shown(viewer)
    assert "python manage.py createapikey" in page
    assert "curl https://mesh.example.org/v1/chat/completions" in page


def test_fifty_are_shown_and_the_others_on_pages_that_keep_the_filter(viewer: Client, session: ChatSession) -> None:
    for _ in range(60):
        another(session)
    first, second = shown(viewer, state="done"), shown(viewer, state="done", page="2")
    assert (first.count("<tr data-key"), second.count("<tr data-key")) == (50, 11)
    assert 'href="?state=done&amp;page=2"' in first
    assert "51–61 of 61" in second


def test_names_are_escaped(viewer: Client, session: ChatSession) -> None:
    SessionHop.objects.update(node_name="<script>alert(1)</script>")
    ChatSession.objects.update(error_code="<b>")
    page = viewer.get("/sessions", {"q": '"><b>'}).content.decode() + shown(viewer)
    assert "<script>alert" not in page
    assert "<b>" not in page


def test_the_queries_are_as_many_for_many_sessions_as_for_few(
    viewer: Client, session: ChatSession, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(9) as few:
        shown(viewer)
    crowd(20, 400, num_samples=1)
    with django_assert_num_queries(len(few)):
        shown(viewer)
