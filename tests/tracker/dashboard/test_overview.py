from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tests.tracker.people import client_of
from tracker.models import AuditEntry, ChatSession, JoinToken, LanguageModel, Node

pytestmark = pytest.mark.django_db


def overview(role: str = "viewer") -> str:
    return client_of(role).get("/").content.decode()


def run_session(model: LanguageModel, **fields: Any) -> ChatSession:
    now = timezone.now()
    number = ChatSession.objects.count()
    row: dict[str, Any] = {"session_id": f"{number:032}", "completion_id": f"chatcmpl-{number}", "seed": 1}
    return ChatSession.objects.create(**(row | {"model": model, "started": now, "last_news": now} | fields))


def test_a_model_that_answers_shows_who_holds_what_and_how_often(
    make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    for name, start, end in [("alpha", 0, 8), ("beta", 4, 12)]:
        connect(make_node(name, start, end))
    page = overview()
    assert '<span class="state good">answers</span>' in page
    assert 'aria-label="12 layers. layers 0–3: 1 node; layers 4–7: 2 nodes; layers 8–11: 1 node."' in page
    assert 'class="part twice" style="--layers: 4" title="layers 4–7: alpha, beta"' in page
    assert "2 of 2 nodes online" in page
    assert "gap" not in page


def test_one_number_of_nodes_is_told_everywhere(make_node: MakeNode, connect: Callable[[Node], None]) -> None:
    connect(make_node("alpha"))
    make_node("beta", status="revoked")
    make_node("gamma", status="pending")
    page = overview()
    assert "<dd>1 <small>of 1</small></dd>" in page
    assert "1 of 1 node online" in page
    assert 'href="?state=revoked">1</a>' in client_of("viewer").get("/nodes").content.decode()


def test_a_gap_is_told_with_what_would_close_it(make_node: MakeNode, connect: Callable[[Node], None]) -> None:
    connect(make_node("alpha", 0, 4))
    gone = timezone.now() - timedelta(seconds=40)
    make_node("beta", 4, 12, lease_until=gone, last_seen=gone)
    page = overview()
    assert "can't answer</span>" in page
    assert 'class="part gap" style="--layers: 8" title="layers 4–11: beta (offline)"' in page
    assert "The gap closes when it is back" in page
    assert "1 of 2 nodes online" in page


def test_a_paused_nodes_layers_are_closed(make_node: MakeNode, connect: Callable[[Node], None]) -> None:
    connect(make_node("alpha", duty=Node.Duty.PAUSED))
    page = overview()
    assert 'class="part closed"' in page
    assert "no node that takes sessions: alpha is paused by the operator" in page


def test_a_refused_model_says_so_to_those_who_may_see_why(model: LanguageModel, settings: Settings) -> None:
    LanguageModel.objects.update(is_refused=True, refusal_reason="<b>bad licence")
    page = overview()
    assert '<span class="state bad">refused</span>' in page
    assert "&lt;b&gt;bad licence" in page
    settings.DASHBOARD_PUBLIC = True
    assert "bad licence" not in overview("anonymous")


def test_speed_is_that_of_the_sessions_that_run(model: LanguageModel) -> None:
    now = timezone.now()
    fast = {"started": now - timedelta(seconds=6), "ttft_ms": 1000.0}
    run_session(model, completion_tokens=51, **fast)
    run_session(model, completion_tokens=26, **fast)
    run_session(model)  # has said nothing yet
    run_session(model, completion_tokens=99, last_news=now - timedelta(minutes=1), **fast)  # lost
    run_session(model, completion_tokens=99, state=ChatSession.State.FAILED, **fast)
    page = overview()
    assert "<dt>tokens a second</dt><dd>15.0</dd>" in page
    assert "<dt>sessions running</dt><dd>3</dd>" in page
    assert "sessions in the last hour, 1 of them failed</dt><dd>5</dd>" in page
    assert "3 sessions running, 15.0 tokens a second" in page


def test_a_session_that_waits_for_a_node_makes_no_tokens(model: LanguageModel) -> None:
    now = timezone.now()
    said = {"started": now - timedelta(seconds=30), "ttft_ms": 1000.0, "completion_tokens": 51}
    run_session(model, last_token=now - timedelta(seconds=10), **said)
    assert "<dt>tokens a second</dt><dd>0.0</dd>" in overview()
    run_session(model, last_token=now - timedelta(seconds=1), **said)
    assert "<dt>tokens a second</dt><dd>1.7</dd>" in overview()


def test_strangers_of_a_public_site_read_models_coverage_and_counts_alone(
    make_node: MakeNode, connect: Callable[[Node], None], settings: Settings
) -> None:
    settings.DASHBOARD_PUBLIC = True
    connect(make_node("alpha", 0, 4, address="192.0.2.77", endpoint="http://alpha.example:9000"))
    make_node("beta", 4, 8, breaker_reason="secret reason")
    page = overview("anonymous")
    assert "tiny" in page
    assert "Layers 4–7 have no node online." in page
    assert "1 of 2 nodes online" in page
    for hidden in ("alpha", "beta", "192.0.2.77", "secret reason", "Who holds", "/nodes/", "join token"):
        assert hidden not in page


def test_on_an_empty_site_an_operator_reads_the_first_steps(db: None, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://mesh.example"
    page = overview("operator")
    line = "MESHNET_JOIN_TOKEN=TOKEN python manage.py runnode --tracker https://mesh.example --model"
    assert line in page
    assert 'hx-post="/first-join-token"' in page
    assert line not in overview("viewer")
    assert "An operator of this site makes a join token" in overview("viewer")


def test_the_first_join_token_is_shown_once_in_the_line_to_start_a_node_with(db: None, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://mesh.example"
    assert client_of("viewer").post("/first-join-token", headers={"HX-Request": "true"}).status_code == 403
    assert not JoinToken.objects.exists()
    answer = client_of("operator").post("/first-join-token", headers={"HX-Request": "true"}).content.decode()
    token = JoinToken.objects.get()
    assert f"MESHNET_JOIN_TOKEN={token.key_id}." in answer
    assert " python manage.py runnode --tracker https://mesh.example --model" in answer
    assert (token.uses_left, token.refusal(timezone.now())) == (10, None)
    assert AuditEntry.objects.get().object_id == str(token.pk)


def test_of_first_join_tokens_the_last_one_is_good_and_what_others_made_stays(db: None) -> None:
    first, other = client_of("operator"), client_of("admin")
    for client in (other, first, first):
        answer = client.post("/first-join-token", headers={"HX-Request": "true"}).content.decode()
    assert "The one that you made before is no good any more" in answer
    tokens = JoinToken.objects.order_by("pk")
    assert [token.revoked for token in tokens] == [False, True, False]
    assert AuditEntry.objects.filter(action="revoke").get().object_id == str(tokens[1].pk)
    JoinToken.objects.update(last_used=timezone.now())
    assert first.post("/first-join-token", headers={"HX-Request": "true"}).status_code == 200
    assert JoinToken.objects.filter(revoked=False).count() == 3, "one that a node has joined with stays good"


def test_once_nodes_are_there_the_next_step_is_to_ask(make_node: MakeNode, model: LanguageModel) -> None:
    make_node("alpha")
    assert "Nobody has asked anything yet" in overview("operator")
    assert "createapikey" in overview("operator")
    assert "createapikey" not in overview("viewer")
    run_session(model)
    assert "Nobody has asked anything yet" not in overview("operator")


def test_names_with_markup_are_escaped(make_node: MakeNode) -> None:
    make_node("<i>node")
    page = overview()
    assert "<i>node" not in page
    assert "&lt;i&gt;node" in page


def test_it_needs_as_many_queries_for_many_nodes_and_models_as_for_one(
    make_node: MakeNode, model: LanguageModel, django_assert_max_num_queries: Any
) -> None:
    viewer = client_of("viewer")
    for number in range(12):
        other = LanguageModel.objects.create(name=f"model-{number}", num_layers=12)
        make_node(f"node-{number}", model=other)
        run_session(model)
    with django_assert_max_num_queries(10):
        viewer.get("/")
