"""POST /api/nodes/heartbeat: which ones count, and what a node hears of its sessions and its duty."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tests.tracker.views.test_nodes import Token, beat, error_of, key_in, post, register
from tracker.models import ChatSession, LanguageModel, Node, SessionHop

pytestmark = pytest.mark.django_db
Connect = Callable[[Node], None]
SESSION, OTHER = "ab" * 16, "cd" * 16


def lease() -> Any:
    return Node.objects.get().lease_until


def test_a_heartbeat_that_comes_twice_or_late_counts_once(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    assert beat(key, number=2).status_code == 200
    renewed = lease()
    for number in (2, 1):
        assert error_of(beat(key, number=number))[:2] == (409, "not_registered")
    assert lease() == renewed
    assert beat(key, number=7).status_code == 200


def test_a_heartbeat_of_an_earlier_registration_counts_for_nothing(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    earlier = Node.objects.get().registration
    again = register(key).json()
    assert again["registration"] == Node.objects.get().registration != earlier
    for registration in (earlier, ""):
        assert error_of(post("heartbeat", key, {"registration": registration, "number": 99}))[1] == "not_registered"
    assert post("heartbeat", key, {"registration": again["registration"], "number": 1}).status_code == 200


def test_a_lease_that_is_over_is_over_until_the_node_registers_again(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    over = timezone.now() - timedelta(milliseconds=1)
    Node.objects.update(lease_until=over)
    status, code, message = error_of(beat(key))
    assert (status, code) == (409, "not_registered")
    assert "register again" in message
    assert lease() == over
    register(key)
    assert beat(key).status_code == 200


def test_registering_twice_is_registering_once(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    first, second = register(key).json(), register(key).json()
    assert Node.objects.count() == 1
    assert {**first, "registration": "", "now": 0} == {**second, "registration": "", "now": 0}


def test_registering_again_changes_nothing_that_the_operator_decided_meanwhile(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    Node.objects.update(duty=Node.Duty.PAUSED, breaker_openings=2)
    register(key)
    node = Node.objects.get()
    assert (node.duty, node.breaker_openings) == (Node.Duty.PAUSED, 2)


@pytest.mark.parametrize("duty", ["works", "paused"])
def test_a_node_hears_its_duty(join_token: Token, duty: str) -> None:
    key = key_in(register(join_token[1]))
    Node.objects.update(duty=duty)
    assert beat(key).json()["duty"] == register(key).json()["duty"] == duty


def test_a_node_sends_its_sessions_away_only_while_others_could_go_on_with_them(
    head: Node, make_node: MakeNode, connect: Connect
) -> None:
    Node.objects.update(duty=Node.Duty.DRAINING)
    connect(make_node("tail", 6, 12))
    assert told(head)["duty"] == "paused"
    connect(make_node("spare", 0, 6))
    assert told(head)["duty"] == "draining"


@pytest.mark.parametrize(
    "news",
    [
        *({"number": -1}, {"number": "1"}, {"registration": 7}, {"session_epochs": []}),
        *({"session_epochs": {"ab": 0}}, {"session_epochs": {SESSION: -1}}),
        {"session_epochs": {f"{number:032x}": 0 for number in range(257)}},
    ],
)
def test_what_says_nothing_of_sense_is_refused(join_token: Token, news: dict[str, Any]) -> None:
    status, code, message = error_of(post("heartbeat", key_in(register(join_token[1])), news))
    assert (status, code) == (400, "bad_request")
    assert next(iter(news)) in message


@pytest.fixture
def begin(model: LanguageModel) -> Callable[..., ChatSession]:
    """A running session over the given nodes in its epoch."""

    def make(session_id: str, *nodes: Node, epoch: int = 0, **fields: Any) -> ChatSession:
        row = {"completion_id": session_id, "model": model, "seed": 1, "epoch": epoch, "started": timezone.now()}
        session = ChatSession.objects.create(session_id=session_id, **(row | fields))
        for position, node in enumerate(nodes):
            layers = {"start_layer": node.shard.start_layer, "end_layer": node.shard.end_layer}
            SessionHop.objects.create(
                session=session, epoch=epoch, position=position, node=node, node_name=node.name, **layers
            )
        return session

    return make


@pytest.fixture
def head(make_node: MakeNode, connect: Connect) -> Node:
    head = make_node("head", 0, 6, registration="r1")
    connect(head)
    return head


def told(node: Node, **held: int) -> dict[str, Any]:
    key = node.key  # type: ignore[attr-defined]
    answer: dict[str, Any] = beat(key, {"session_epochs": held}).json()
    return answer


def test_running_sessions_stay_and_those_that_ended_or_are_unknown_are_closed(
    head: Node, begin: Callable[..., ChatSession]
) -> None:
    begin(SESSION, head, epoch=1)
    begin(OTHER, head, state=ChatSession.State.CANCELLED, epoch=3)
    unknown = "ef" * 16
    assert told(head, **{SESSION: 1, OTHER: 2, unknown: 5})["closed"] == {OTHER: 3, unknown: 5}
    assert told(head)["closed"] == {}


def test_a_node_that_the_route_has_left_is_told_up_to_the_new_epoch(
    head: Node, make_node: MakeNode, begin: Callable[..., ChatSession]
) -> None:
    other = make_node("other", 0, 12)
    session = begin(SESSION, head)
    SessionHop.objects.create(
        session=session, epoch=1, position=0, node=other, node_name="other", start_layer=0, end_layer=12
    )
    assert told(head, **{SESSION: 0})["closed"] == {}
    ChatSession.objects.update(epoch=1)
    assert told(head, **{SESSION: 0})["closed"] == {SESSION: 1}


def test_an_epoch_whose_route_isnt_known_yet_closes_nothing(head: Node, begin: Callable[..., ChatSession]) -> None:
    begin(SESSION, head)
    ChatSession.objects.update(epoch=1)
    begin(OTHER, head)
    assert told(head, **{SESSION: 0, OTHER: 1})["closed"] == {}


def test_a_session_through_a_draining_node_shall_move_while_there_is_another_way(
    head: Node, make_node: MakeNode, connect: Connect, begin: Callable[..., ChatSession]
) -> None:
    tail, spare = make_node("tail", 6, 12), make_node("spare", 6, 12, registration="r2")
    connect(tail)
    begin(SESSION, head, tail)
    begin(OTHER, head, spare)
    held = {SESSION: 0, OTHER: 0}
    assert told(head, **held)["move"] == []
    Node.objects.filter(name="tail").update(duty=Node.Duty.DRAINING)
    assert told(head, **held)["move"] == [], "nobody else holds these layers"
    connect(spare)
    assert told(head, **held)["move"] == [SESSION]
    assert told(spare, **{OTHER: 0})["move"] == [], "only a head can move a session"
