from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from tests.tracker.conftest import MakeNode
from tests.tracker.crowd import crowd
from tests.tracker.finished import make_finished, make_survivor
from tests.tracker.people import client_of
from tracker.models import AuditEntry, ChatSession, Failover, Node, SessionHop, SessionSteps

pytestmark = pytest.mark.django_db
STEP = {"step": 3, "epoch": 0, "position": 29, "tokens": 1, "at_ms": 1500.0, "hops": [[2, 0, 0], [2, 3, 1]]}


@pytest.fixture
def session(make_node: MakeNode, connect: Callable[[Node], None]) -> ChatSession:
    return make_finished(make_node, connect)


@pytest.fixture
def survivor(session: ChatSession) -> ChatSession:
    make_survivor(session)
    return session


@pytest.fixture
def viewer(db: None) -> Client:
    return client_of("viewer")


def shown(client: Client, choice: str = "") -> str:
    return client.get(f"/sessions/chatcmpl-abc{choice}").content.decode()


def runs() -> None:
    ChatSession.objects.update(state=ChatSession.State.RUNNING, ended=None, last_news=timezone.now())


def test_it_tells_the_way_and_what_a_step_costs_at_each_hop(viewer: Client, session: ChatSession) -> None:
    times = {"compute_p50_ms": 3.0, "compute_p95_ms": 41.0, "network_p50_ms": 5.5, "queue_p95_ms": 0.25}
    SessionHop.objects.filter(position=1).update(**times)
    page = shown(viewer)
    for words in ("01234567", "layers 0–5, head", "layers 6–11, tail", "relay", "3.0 ms", "41 ms", "5.5 ms", "0.25 ms"):
        assert words in page
    assert "8.5 ms <small>a step</small>" in page
    assert f'<a href="/nodes/{Node.objects.get(name="node-b").pk}">node-b</a>' in page
    assert session.session_id not in page


def test_its_last_steps_are_drawn_and_told_as_a_table(viewer: Client, session: ChatSession) -> None:
    assert "None are known" in shown(viewer)
    SessionSteps.objects.create(session=session, steps=[STEP, STEP | {"step": 4, "at_ms": 1510.0}])
    page = shown(viewer)
    assert page.count("<svg") == 2
    assert "its last 2 steps, 2 tokens in 18 ms" in page
    assert "node-a 2.0, 0.0, 0.0; node-b 2.0, 3.0, 1.0" in page
    runs()
    SessionSteps.objects.all().delete()
    assert "Its head has told of none yet" in shown(viewer)


def test_it_tells_what_it_went_on_without(viewer: Client, survivor: ChatSession) -> None:
    page = shown(viewer)
    for words in (
        "node-b, layers 6–11, was lost: node_failed: &lt;b&gt;no path works.",
        "Said by node-a, at token 8 of the answer.",
        "node-c took over; the next token came 812 ms after the loss.",
        "Filled with 16 tokens again, from activations that the head had kept: 32 ms of computing.",
        "Before, in epoch 0: node-a (layers 0–5) → node-b (layers 6–11)",
    ):
        assert words in page
    Failover.objects.update(kind=Failover.Kind.HEAD, reported_by=None, kept="")
    page = shown(viewer)
    assert "node-b, layers 6–11 (the head), was lost" in page
    assert "Seen by the site" in page


def test_it_tells_who_asked_and_what_the_client_wrote_beside_it(viewer: Client, session: ChatSession) -> None:
    ChatSession.objects.update(
        user="<i>ann", request_id="req_1", metadata={"items": "<i>seven"}, drafted_tokens=9, accepted_tokens=6
    )
    page = shown(viewer)
    for words in (
        "<dd>&lt;i&gt;ann</dd>",
        "<dt>items</dt><dd>&lt;i&gt;seven</dd>",
        "<code>req_1</code>",
        "6 of 9 guessed tokens accepted",
    ):
        assert words in page


def test_each_choice_of_an_answer_has_a_page_with_the_way_to_the_others(viewer: Client, session: ChatSession) -> None:
    session.pk, session.choice, session.session_id = None, 1, "fedcba9876543210" * 2
    session.state, session.error_message = ChatSession.State.CANCELLED, "another choice failed: no room"
    session.save()
    first, second = shown(viewer), shown(viewer, "/1")
    assert ("01234567" in first, "fedcba98" in first) == (True, False)
    assert ("01234567" in second, "fedcba98" in second) == (False, True)
    assert '<a href="/sessions/chatcmpl-abc/1">1</a>' in first
    assert '<a href="/sessions/chatcmpl-abc/0">0</a>' in second
    assert '<p class="note">another choice failed: no room</p>' in second
    assert viewer.get("/sessions/chatcmpl-abc/2").status_code == 404


def test_names_are_escaped(viewer: Client, survivor: ChatSession) -> None:
    SessionHop.objects.update(node_name="<script>alert(1)</script>")
    ChatSession.objects.update(error_message="<b>", error_code="<b>", cancelled_by="<b>")
    SessionSteps.objects.create(session=survivor, steps=[STEP])
    for state in ("failed", "cancelled", "running"):
        ChatSession.objects.update(state=state)
        page = shown(viewer)
        assert "<script>alert" not in page
        assert "<b>" not in page


def test_who_may_ends_a_session_that_runs_and_that_is_written_down(session: ChatSession) -> None:
    runs()
    operator = client_of("operator")
    assert 'hx-post="/sessions/chatcmpl-abc/0/cancel"' in shown(operator)
    told = operator.post("/sessions/chatcmpl-abc/0/cancel", {"why": "too long"}, headers={"HX-Request": "true"})
    assert "Session 01234567 ends within a few seconds" in told.content.decode()
    session.refresh_from_db()
    assert session.cancelled_by == "one-operator"
    [entry] = AuditEntry.objects.all()
    assert (entry.action, entry.target, entry.reason) == ("cancel", "01234567", "too long")
    page = shown(operator)
    assert "one-operator has asked for its end" in page
    assert "hx-post" not in page
    again = operator.post("/sessions/chatcmpl-abc/0/cancel", headers={"HX-Request": "true"})
    assert (again.status_code, AuditEntry.objects.count()) == (409, 1)
    assert operator.post("/sessions/nothing/0/cancel").status_code == 404


def test_who_may_only_look_ends_nothing(session: ChatSession, viewer: Client) -> None:
    runs()
    assert "hx-post" not in shown(viewer)
    assert viewer.post("/sessions/chatcmpl-abc/0/cancel").status_code == 403
    assert Client().post("/sessions/chatcmpl-abc/0/cancel").status_code == 302
    session.refresh_from_db()
    assert (session.cancelled_by, AuditEntry.objects.exists()) == ("", False)


def test_a_session_that_has_ended_has_no_button(session: ChatSession) -> None:
    assert "hx-post" not in shown(client_of("operator"))


def test_the_queries_are_as_many_for_long_stories_as_for_short(
    viewer: Client, survivor: ChatSession, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(9) as before:
        shown(viewer)
    crowd(20, 100, num_samples=1)
    for epoch in range(2, 9):
        survivor.hops.create(epoch=epoch, position=0, node_name=f"n{epoch}", start_layer=0, end_layer=12)
        lost = {"kind": "hop", "node_name": "x", "start_layer": 0, "end_layer": 12, "code": "x", "at": timezone.now()}
        survivor.failovers.create(epoch=epoch, **lost)
    SessionSteps.objects.create(session=survivor, steps=[STEP] * 32)
    ChatSession.objects.filter(pk=survivor.pk).update(epoch=8)
    with django_assert_num_queries(len(before)):
        shown(viewer)


@pytest.mark.usefixtures("session")
def test_the_cause_on_each_path_is_shown_to_operators_alone() -> None:
    ChatSession.objects.update(error_message="The chat lost layer 5.", error_details="<b>tunnel</b>: cut")
    assert "&lt;b&gt;tunnel&lt;/b&gt;: cut" in shown(client_of("operator"))
    assert "tunnel&lt;" not in shown(client_of("viewer"))
