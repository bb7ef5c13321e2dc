"""A session that lost a hop: who may ask for another route, what of the old one stays, what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from relay import headers
from tests.tracker.conftest import MakeNode
from tests.tracker.sessions import begin_session
from tracker import epochs, reroutes
from tracker.errors import ApiError
from tracker.models import ChatSession, Failover, Node
from tracker.node_schemas import Reroute, check

pytestmark = pytest.mark.django_db
Connect = Callable[[Node], None]
Online = Callable[..., Node]


@pytest.fixture
def online(make_node: MakeNode, connect: Connect) -> Online:
    def make(name: str, start_layer: int, end_layer: int, **fields: Any) -> Node:
        node = make_node(name, start_layer, end_layer, **fields)
        connect(node)
        return node

    return make


@pytest.fixture
def route(online: Online) -> tuple[Node, Node, Node]:
    return online("head", 0, 4), online("middle", 4, 8), online("tail", 8, 12)


@pytest.fixture
def session(route: tuple[Node, Node, Node]) -> ChatSession:
    return begin_session(seed=7, max_tokens=9)


def ask(session: ChatSession, head: Node, lost: Node, **fields: Any) -> dict[str, Any]:
    now: datetime = fields.pop("now", timezone.now())
    hop = session.hops.get(epoch=session.epoch, node=lost)
    layers = {"start_layer": hop.start_layer, "end_layer": hop.end_layer}
    seen = {"peer_id": lost.peer_id, **layers, "code": "node_failed", "cause": "no path works"}
    body = {"epoch": session.epoch, "lost": seen | fields.pop("seen", {}), "position": 17, "failed": []} | fields
    _, answer = reroutes.reroute(head, session.session_id, check(Reroute, body), now)
    return answer


def refused(session: ChatSession, head: Node, lost: Node, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        ask(session, head, lost, **fields)
    return error.value


def hops(answer: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(hop["peer_id"], hop["start_layer"], hop["end_layer"]) for hop in answer["route"]]


def test_only_the_lost_hop_is_replaced(session: ChatSession, route: tuple[Node, Node, Node], online: Online) -> None:
    (head, middle, tail), spare = route, online("spare", 4, 8)
    online("other tail", 8, 12)
    answer = ask(session, head, middle)
    assert hops(answer) == [(spare.peer_id, 4, 8), (tail.peer_id, 8, 12)]
    ticket = headers.decode_ticket(answer["ticket"])[0]
    assert ticket.hops == ((head.peer_id, 0, 4), (spare.peer_id, 4, 8), (tail.peer_id, 8, 12))
    assert (ticket.epoch, ticket.seed, ticket.max_tokens) == (1, 7, 9)
    assert (answer["epoch"], ticket.session) == (1, session.session_id)
    assert headers.decode_route(json.dumps(answer["route"]))[0].relay_addr


def test_the_new_ticket_ends_when_the_first_one_does(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    online("spare", 8, 12)
    later = timezone.now() + timedelta(seconds=50)
    ticket = headers.decode_ticket(ask(session, route[0], route[2], now=later)["ticket"])[0]
    assert ticket.expires == int((session.deadline + epochs.TICKET_MARGIN).timestamp())


def test_the_cause_names_nodes_as_people_know_them(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, _), _ = route, online("spare", 4, 8)
    ask(session, head, middle, seen={"cause": f"layers 4–7 on peer {middle.peer_id[:8]}: no path works"})
    assert session.failovers.get().cause == "layers 4–7 on node middle: no path works"


def test_the_story_is_written(session: ChatSession, route: tuple[Node, Node, Node], online: Online) -> None:
    (head, middle, _), _ = route, online("spare", 4, 8)
    now = timezone.now()
    ask(session, head, middle, now=now)
    session.refresh_from_db()
    failover = session.failovers.get()
    assert (session.epoch, failover.epoch, failover.kind, failover.at) == (1, 1, Failover.Kind.HOP, now)
    assert (failover.node, failover.node_name, failover.reported_by) == (middle, "middle", head)
    assert (failover.start_layer, failover.end_layer, failover.position) == (4, 8, 17)
    assert (failover.code, failover.cause) == ("node_failed", "no path works")
    names = {epoch: [hop.node_name for hop in session.hops.filter(epoch=epoch)] for epoch in (0, 1)}
    assert names == {0: ["head", "middle", "tail"], 1: ["head", "spare", "tail"]}


def test_several_nodes_may_take_over_the_layers_of_one(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    head, middle, _ = route
    online("first", 2, 6), online("second", 5, 10)
    names = {node.peer_id: node.name for node in Node.objects.all()}
    answer = ask(session, head, middle)
    assert [(names[peer_id], start, end) for peer_id, start, end in hops(answer)] == [
        ("first", 4, 6),
        ("second", 6, 8),
        ("tail", 8, 12),
    ]


def test_where_the_layers_alone_cannot_be_replaced_the_rest_is_another_route(
    session: ChatSession, route: tuple[Node, Node, Node], connect: Connect, online: Online
) -> None:
    head, middle, tail = route
    Node.objects.filter(pk=tail.pk).update(lease_until=timezone.now())  # it is gone as well, not noticed yet
    whole = online("whole", 0, 12)
    assert hops(ask(session, head, middle)) == [(whole.peer_id, 4, 12)]


def test_a_head_takes_on_more_of_its_own_shard_only_where_nobody_else_can(
    session: ChatSession, route: tuple[Node, Node, Node], make_node: MakeNode
) -> None:
    head, middle, tail = route
    head.shard.end_layer = 9
    head.shard.save()
    assert hops(ask(session, head, middle)) == [(tail.peer_id, 9, 12)]
    assert [hop.layers for hop in session.hops.filter(epoch=1)] == ["layers 0–8", "layers 9–11"]


def test_no_node_is_on_a_route_twice(session: ChatSession, route: tuple[Node, Node, Node]) -> None:
    head, middle, tail = route
    tail.shard.start_layer = 4
    tail.shard.save()
    assert hops(ask(session, head, middle)) == [(tail.peer_id, 4, 12)]


def test_a_node_that_failed_this_session_before_is_the_last_choice(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, _), first = route, online("first", 4, 8)
    assert hops(ask(session, head, middle))[0][0] == first.peer_id
    session.refresh_from_db()
    second = online("second", 4, 8)
    assert hops(ask(session, head, first, failed=[middle.peer_id]))[0][0] == second.peer_id
    session.refresh_from_db()
    failed = [middle.peer_id, first.peer_id]
    Node.objects.filter(pk=middle.pk).update(lease_until=None)
    assert hops(ask(session, head, second, failed=failed))[0][0] == first.peer_id


def test_where_nobody_has_the_layers_they_are_named_and_nothing_changes(
    session: ChatSession, route: tuple[Node, Node, Node]
) -> None:
    error = refused(session, route[0], route[1])
    assert (error.status, error.code) == (503, "no_route")
    assert "can't do without node middle: layers 4–7 have no node online" in error.message
    assert int(error.headers["Retry-After"]) > 0
    session.refresh_from_db()
    assert (session.epoch, Failover.objects.count()) == (0, 0)


def test_a_head_that_asks_again_and_again_in_vain_is_logged_once_an_epoch(
    session: ChatSession, route: tuple[Node, Node, Node], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        refused(session, route[0], route[1])
    why = f"session {session.short_id} has no other route in epoch 0: the session can't do without node middle: layers"
    [line] = [message for message in caplog.messages if "no other route" in message]
    assert why in line


@pytest.mark.parametrize(("duty", "words"), [(Node.Duty.PAUSED, "paused"), (Node.Duty.DRAINING, "being drained")])
def test_a_node_that_takes_no_new_sessions_takes_over_none(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online, duty: str, words: str
) -> None:
    online("spare", 4, 8, duty=duty)
    assert f"(node spare is {words} by the operator)" in refused(session, route[0], route[1]).message


def test_a_paused_node_finishes_what_it_has(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, tail), _ = route, online("spare", 4, 8)
    Node.objects.filter(name__in=("head", "tail")).update(duty=Node.Duty.PAUSED)
    assert hops(ask(session, head, middle))[-1][0] == tail.peer_id


def test_a_head_whose_socket_is_away_for_a_moment_may_ask(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, tail), _ = route, online("spare", 4, 8)
    Node.objects.filter(pk=head.pk).update(lease_until=None)
    assert hops(ask(session, head, middle))[-1][0] == tail.peer_id


MOVE = {"code": "move", "cause": "a node of the route is being drained"}


def test_a_head_that_is_to_move_is_told_a_route_without_the_drained_node(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, tail), spare = route, online("spare", 8, 12)
    Node.objects.filter(pk=tail.pk).update(duty=Node.Duty.DRAINING)
    assert hops(ask(session, head, middle, seen=MOVE)) == [(middle.peer_id, 4, 8), (spare.peer_id, 8, 12)]
    failover = session.failovers.get()
    assert (failover.kind, failover.node_name) == (Failover.Kind.MOVE, "tail")


def test_a_route_with_several_drained_nodes_is_left_at_once(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, _), whole = route, online("whole", 0, 12)
    Node.objects.exclude(pk=whole.pk).update(duty=Node.Duty.DRAINING)
    assert hops(ask(session, head, middle, seen=MOVE)) == [(whole.peer_id, 4, 12)]


def test_a_drained_node_that_nobody_can_stand_in_for_goes_on(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, tail), _ = route, online("spare", 4, 8)
    Node.objects.filter(pk=tail.pk).update(duty=Node.Duty.DRAINING)
    assert refused(session, head, middle, seen=MOVE).code == "no_route"
    assert hops(ask(session, head, middle))[-1] == (tail.peer_id, 8, 12)


def test_a_move_that_is_over_changes_nothing(session: ChatSession, route: tuple[Node, Node, Node]) -> None:
    error = refused(session, route[0], route[1], seen=MOVE)
    assert (error.status, error.code) == (503, "no_route")
    assert "go on as before" in error.message


def test_an_answer_that_was_lost_is_given_again(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, _), _ = route, online("spare", 4, 8)
    first, again = ask(session, head, middle), ask(session, head, middle)
    assert (again["epoch"], again["route"]) == (first["epoch"], first["route"])
    assert again["ticket"] == first["ticket"]
    assert Failover.objects.count() == 1
    other = ChatSession.objects.get()
    assert epochs.raise_epoch(other)
    assert refused(session, head, middle).code == "stale"


def test_only_the_head_of_the_session_may_ask(session: ChatSession, route: tuple[Node, Node, Node]) -> None:
    error = refused(session, route[2], route[1])
    assert (error.status, error.code) == (403, "forbidden")


def test_a_head_that_was_replaced_is_told_so(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    head, middle, _ = route
    assert epochs.raise_epoch(ChatSession.objects.get())
    error = refused(session, head, middle)
    assert (error.status, error.code) == (409, "stale")


def test_of_two_that_raise_the_epoch_at_once_one_wins(session: ChatSession) -> None:
    one, other = ChatSession.objects.get(), ChatSession.objects.get()
    assert [epochs.raise_epoch(one), epochs.raise_epoch(other)] == [True, False]
    assert (one.epoch, ChatSession.objects.get().epoch) == (1, 1)


@pytest.mark.parametrize(
    "fields",
    [{"state": ChatSession.State.DONE}, {"state": ChatSession.State.CANCELLED}, {"deadline": timezone.now()}],
)
def test_a_session_that_has_ended_has_no_other_route(
    session: ChatSession, route: tuple[Node, Node, Node], fields: dict[str, Any]
) -> None:
    ChatSession.objects.update(**fields)
    error = refused(session, route[0], route[1])
    assert (error.status, error.code) == (404, "not_found")


@pytest.mark.parametrize("seen", [{"start_layer": 5}, {"peer_id": "ab" * 16}])
def test_a_hop_that_is_not_on_the_route_cannot_be_lost(
    session: ChatSession, route: tuple[Node, Node, Node], seen: dict[str, Any]
) -> None:
    error = refused(session, route[0], route[1], seen=seen)
    assert (error.status, error.code) == (400, "bad_request")


def test_a_head_cannot_lose_itself(session: ChatSession, route: tuple[Node, Node, Node]) -> None:
    assert refused(session, route[0], route[0]).status == 400


def test_a_session_gets_three_new_routes_a_minute(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, _), start = route, timezone.now()
    spare = online("spare", 4, 8)
    for number, lost in enumerate((middle, spare, middle)):
        ask(session, head, lost, now=start + timedelta(seconds=number))
        session.refresh_from_db()
    error = refused(session, head, spare, now=start + timedelta(seconds=20))
    assert (error.status, error.code, error.headers["Retry-After"]) == (429, "rate_limited", "40")
    Node.objects.update(lease_until=start + timedelta(minutes=2))
    ask(session, head, spare, now=start + timedelta(seconds=60))
    assert Failover.objects.count() == 4


def test_words_are_cut_to_what_a_row_holds(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    online("spare", 4, 8)
    ask(session, route[0], route[1], seen={"code": "x" * 100, "cause": "\0\ud83d" + "y" * 1000})
    failover = session.failovers.get()
    assert (len(failover.code), len(failover.cause), failover.cause[:2]) == (60, 500, "?y")


def test_a_route_survives_that_a_node_is_deleted(
    session: ChatSession, route: tuple[Node, Node, Node], online: Online
) -> None:
    (head, middle, tail), whole = route, online("whole", 3, 12)
    seen = {"peer_id": middle.peer_id}
    tail.delete()
    assert hops(ask(session, head, middle, seen=seen)) == [(whole.peer_id, 4, 12)]
