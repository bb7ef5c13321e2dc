"""POST /api/sessions/<id>/reroute over HTTP: who may ask, and how errors look."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client
from pytest_django.live_server_helper import LiveServer

from nodes.deadline import Deadline
from nodes.reroute import Loss, NextRoute, NotNow, NotOurs, TrackerRerouter
from relay import wire
from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import PeerSocket
from tests.tracker.sessions import begin_session
from tracker import figures
from tracker.credentials import Credential
from tracker.models import ChatSession, Node
from tracker.probes import prober

pytestmark = pytest.mark.django_db


@pytest.fixture
def pair(make_node: MakeNode, connect: Callable[[Node], None]) -> tuple[Node, Node]:
    head, tail = make_node("head", 0, 6), make_node("tail", 6, 12)
    connect(head)
    connect(tail)
    return head, tail


def post(client: Client, session_id: str, body: Any, key: str) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return client.post(f"/api/sessions/{session_id}/reroute", body, content_type="application/json", headers=headers)


def key_of(node: Node) -> str:
    key: Credential = node.key  # type: ignore[attr-defined]
    return key.text


def losing(node: Node, **fields: Any) -> dict[str, Any]:
    lost = {"peer_id": node.peer_id, "start_layer": 6, "end_layer": 12, "code": "node_failed", "cause": "gone"}
    return {"epoch": 0, "lost": lost, "position": 9, "failed": []} | fields


def test_a_head_gets_another_route(
    client: Client, pair: tuple[Node, Node], make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    session, (head, tail) = begin_session(), pair
    spare = make_node("spare", 4, 12)
    connect(spare)
    response = post(client, session.session_id, losing(tail), key_of(head))
    assert response.status_code == 200
    answer = response.json()
    assert set(answer) == {"epoch", "ticket", "route", "now"}
    assert [hop["peer_id"] for hop in answer["route"]] == [spare.peer_id]


@pytest.mark.django_db(transaction=True)
def test_a_head_and_the_site_understand_each_other(
    live_server: LiveServer, pair: tuple[Node, Node], make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    session, (head, tail) = begin_session(), pair
    tracker = TrackerRerouter(live_server.url, key_of(head), ssl.create_default_context())
    loss = Loss(tail.peer_id, 6, 12, "node_failed", "no path works")

    def ask() -> NextRoute:
        return tracker.ask(session.session_id, 0, loss, 9, [], Deadline.after(60))

    with pytest.raises(NotNow, match="can't do without node tail: layers 6–11 have no node online"):
        ask()
    spare = make_node("spare", 4, 12)
    connect(spare)
    answer = ask()
    assert [(hop.peer_id, hop.start_layer, hop.end_layer) for hop in answer.hops] == [(spare.peer_id, 6, 12)]
    assert (answer.epoch, session.failovers.get().cause) == (1, "no path works")
    ChatSession.objects.update(epoch=5)
    with pytest.raises(NotOurs, match="leave it to its new head"):
        ask()


def test_new_routes_and_refusals_are_counted(
    client: Client, pair: tuple[Node, Node], make_node: MakeNode, connect: Callable[[Node], None]
) -> None:
    def counted(name: str) -> float:
        text = figures.exposed().decode()
        return float(next((line.split()[-1] for line in text.splitlines() if line.startswith(name)), 0))

    names = 'meshnet_reroutes_refused_total{code="no_route"}', 'meshnet_failovers_total{kind="hop"}'
    before, session = [counted(name) for name in names], begin_session()
    post(client, session.session_id, losing(pair[1]), key_of(pair[0]))
    connect(make_node("spare", 6, 12))
    post(client, session.session_id, losing(pair[1]), key_of(pair[0]))
    assert [counted(name) for name in names] == [figure + 1 for figure in before]


def test_where_there_is_none_the_head_hears_when_to_ask_again(client: Client, pair: tuple[Node, Node]) -> None:
    response = post(client, begin_session().session_id, losing(pair[1]), key_of(pair[0]))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_route"
    assert int(response["Retry-After"]) > 0


@pytest.mark.parametrize("session_id", ["12" * 16, "x", "12" * 40])
def test_an_unknown_session_is_not_found(client: Client, pair: tuple[Node, Node], session_id: str) -> None:
    response = post(client, session_id, losing(pair[1]), key_of(pair[0]))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_a_join_token_or_nothing_opens_no_session(
    client: Client, pair: tuple[Node, Node], join_token: tuple[object, Credential]
) -> None:
    session = begin_session()
    for key in ("", "nonsense", join_token[1].text):
        assert post(client, session.session_id, losing(pair[1]), key).status_code == 401


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"epoch": -1}, "epoch"),
        ({"lost": {}}, "lost.peer_id"),
        ({"failed": ["x"] * 1000}, "failed"),
        ({"position": "9"}, "position"),
    ],
)
def test_what_is_wrong_is_named(client: Client, pair: tuple[Node, Node], body: dict[str, Any], named: str) -> None:
    response = post(client, begin_session().session_id, losing(pair[1], **body), key_of(pair[0]))
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


def test_other_methods_are_refused(client: Client) -> None:
    response = client.get(f"/api/sessions/{'12' * 16}/reroute")
    assert (response.status_code, response["Allow"]) == (405, "POST")


def test_no_answer_holds_the_whole_session_id(client: Client, pair: tuple[Node, Node]) -> None:
    session = begin_session()
    response = post(client, session.session_id, losing(pair[1]), key_of(pair[0]))
    assert response.status_code == 503
    assert session.session_id not in json.dumps(response.json())


@async_to_sync
async def ask_while_the_tail_is_broken(session_id: str, head: Node, tail: Node) -> int:
    def broken(request: wire.Request) -> list[wire.Answer]:
        return [wire.error_response(request.request_id, wire.Code.INTERNAL, "the engine has stopped")]

    sockets = [PeerSocket(node.peer_id, "tiny") for node in (head, tail)]
    sockets[1].reply = broken
    headers = {"Authorization": f"Bearer {key_of(head)}"}
    try:
        path = f"/api/sessions/{session_id}/reroute"
        response = await AsyncClient().post(path, losing(tail), content_type="application/json", headers=headers)
        await prober.idle()
    finally:
        for socket in sockets:
            socket.leave()
    await tail.arefresh_from_db()
    return int(response.status_code)


@pytest.mark.parametrize(("has_spare", "status"), [(True, 200), (False, 503)])
def test_the_site_sees_for_itself_how_an_accused_node_is(
    make_node: MakeNode, connect: Callable[[Node], None], pair: tuple[Node, Node], has_spare: bool, status: int
) -> None:
    session = begin_session()
    if has_spare:
        connect(make_node("spare", 6, 12))
    assert ask_while_the_tail_is_broken(session.session_id, *pair) == status
    assert pair[1].breaker_reason == "asked how it is, the engine has stopped"
