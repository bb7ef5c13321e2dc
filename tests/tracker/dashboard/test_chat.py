"""The chat page: what it shows whom, and the route that it shows beside an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tests.tracker.people import client_of
from tracker.models import ChatSession, Failover, LanguageModel, Node, SessionHop

Visit = Callable[..., Client]


@pytest.fixture
def visit(db: None) -> Visit:
    """A browser in which somebody of this group is logged in."""

    def make(group: str, name: str = "") -> Client:
        return client_of(group, name or group)

    return make


@pytest.fixture
def session(model: LanguageModel, make_node: MakeNode) -> ChatSession:
    """One that "operator" has asked for on the page, and that runs."""
    made = ChatSession.objects.create(
        session_id="5" * 32, completion_id="chatcmpl-1", model=model, user="operator", seed=1, started=timezone.now()
    )
    for position, (start, end) in enumerate([(0, 6), (6, 12)]):
        node = make_node(f"n{position}", start, end)
        layers = {"start_layer": start, "end_layer": end}
        SessionHop.objects.create(session=made, position=position, node=node, node_name=node.name, **layers)
    return made


@pytest.mark.parametrize(("group", "status"), [("viewer", 403), ("operator", 200), ("admin", 200)])
def test_operators_chat_and_viewers_do_not(visit: Visit, group: str, status: int) -> None:
    assert visit(group).get("/chat").status_code == status


def test_without_a_login_it_asks_for_one(client: Client, db: None) -> None:
    for path in ("/chat", "/chat/chatcmpl-1/route"):
        assert client.get(path)["Location"] == f"/login?next={path}"


def test_models_that_answer_can_be_chosen_and_others_say_why_not(
    visit: Visit, make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    connect(make_node("only"))
    LanguageModel.objects.create(name="empty", num_layers=2, fingerprint="c" * 64)
    LanguageModel.objects.create(name="unwanted", num_layers=2, is_refused=True, refusal_reason="Too big.")
    page = visit("operator").get("/chat?model=tiny").content.decode()
    assert '<option value="tiny" selected>' in page
    assert '<option value="empty" disabled>' in page
    assert "layers 0–1 have no node online" in page
    assert "The operator refuses this model: Too big." in page


def test_an_empty_site_says_where_models_come_from(visit: Visit) -> None:
    assert "the first node brings one" in visit("operator").get("/chat").content.decode()


def test_the_route_of_an_answer_is_its_askers_alone(visit: Visit, session: ChatSession) -> None:
    path = f"/chat/{session.completion_id}/route"
    shown = visit("operator").get(path)
    assert shown.status_code == 200
    text = shown.content.decode()
    assert 'data-running="yes"' in text
    assert text.index("n0") < text.index("layers 0–5") < text.index("n1") < text.index("layers 6–11")
    assert session.session_id not in text
    assert visit("admin").get(path).status_code == 404
    assert visit("viewer").get(path).status_code == 403


def test_the_route_tells_of_nodes_that_were_lost(visit: Visit, session: ChatSession) -> None:
    lost = Node.objects.get(name="n1")
    Failover.objects.create(
        session=session,
        epoch=1,
        kind=Failover.Kind.HOP,
        node=lost,
        node_name="<b>n1</b>",
        start_layer=6,
        end_layer=12,
        code="peer_gone",
        at=timezone.now(),
    )
    text = visit("operator").get(f"/chat/{session.completion_id}/route").content.decode()
    assert "it went on without <strong>&lt;b&gt;n1&lt;/b&gt;</strong>, layers 6–11" in text


def test_an_answer_that_has_ended_says_so(visit: Visit, session: ChatSession) -> None:
    ChatSession.objects.update(state=ChatSession.State.DONE, ended=timezone.now())
    assert 'data-running="no"' in visit("operator").get(f"/chat/{session.completion_id}/route").content.decode()
