"""Nodes that fail and are left out: who has to say so, and what lets them work again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import count

import pytest
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tests.tracker.sessions import begin_chat, begin_session
from tracker import accusations, endings
from tracker.breaker import State
from tracker.endings import Outcome
from tracker.errors import ApiError
from tracker.models import ChatSession, Failover, JoinToken, Node

NOW = timezone.now()
pytestmark = pytest.mark.django_db
epochs = count(1)


def join_token(label: str) -> JoinToken:
    token = JoinToken(label=label)
    token.give_secret()
    token.save()
    return token


@pytest.fixture
def node(make_node: MakeNode, connect: Callable[[Node], None]) -> Node:
    node = make_node("shaky")
    connect(node)
    return node


@pytest.fixture
def accuse(node: Node, make_node: MakeNode) -> Callable[..., bool]:
    """A head that joined with this token says that the node failed."""
    session = begin_session()

    def make(token: JoinToken, *, code: str = "node_failed", seconds: float = 0) -> bool:
        epoch, now = next(epochs), NOW + timedelta(seconds=seconds)
        head = make_node(f"head {epoch}", joined_with=token)
        layers = {"node_name": node.name, "start_layer": 0, "end_layer": 12}
        said = {"reported_by": head, "code": code, "cause": "no path works", "at": now}
        failover = Failover.objects.create(session=session, epoch=epoch, kind="hop", node=node, **layers, **said)
        return accusations.accused(failover, now)

    return make


def state(node: Node, seconds: float = 0) -> State:
    node.refresh_from_db()
    return node.breaker.state(NOW + timedelta(seconds=seconds))


def test_what_the_site_saw_itself_is_enough(node: Node) -> None:
    assert accusations.site_saw(node.peer_id, "it said nothing for 5 s", NOW)
    assert state(node) == State.OPEN
    assert not accusations.site_saw(node.peer_id, "again", NOW)
    node.refresh_from_db()
    assert (node.breaker_reason, node.breaker_openings) == ("it said nothing for 5 s", 1)


def test_of_a_node_that_is_gone_nothing_is_held(make_node: MakeNode) -> None:
    gone = make_node("gone")
    assert not accusations.site_saw(gone.peer_id, "it said nothing for 5 s", NOW)
    assert not accusations.site_saw("ab" * 16, "it was deleted", NOW)
    assert state(gone) == State.CLOSED


def test_one_owner_may_accuse_as_often_as_he_likes(node: Node, accuse: Callable[..., bool]) -> None:
    token = join_token("one")
    assert [accuse(token) for _ in range(3)] == [False] * 3
    assert state(node) == State.CLOSED


def test_two_owners_are_enough_and_named(node: Node, accuse: Callable[..., bool]) -> None:
    assert not accuse(join_token("one"))
    assert accuse(join_token("other"), seconds=299)
    assert state(node, 299) == State.OPEN
    assert " and head " in node.breaker_reason
    assert node.breaker_reason.endswith("couldn't go on with it: no path works")


def test_what_was_said_long_ago_counts_no_more(node: Node, accuse: Callable[..., bool]) -> None:
    accuse(join_token("one"))
    assert not accuse(join_token("other"), seconds=300)


def test_what_was_said_before_a_node_was_put_right_counts_no_more(node: Node, accuse: Callable[..., bool]) -> None:
    accuse(join_token("one"))
    Node.objects.filter(pk=node.pk).update(cleared=NOW + timedelta(seconds=1))
    assert not accuse(join_token("other"), seconds=2)
    assert accuse(join_token("third"), seconds=3), "two have said so since"


@pytest.mark.parametrize("ended", [ChatSession.State.DONE, ChatSession.State.FAILED])
def test_a_session_that_an_accused_node_carried_to_its_end_puts_it_right(
    node: Node, accuse: Callable[..., bool], ended: str
) -> None:
    chat = begin_chat()
    accuse(join_token("one"))
    endings.finish(chat, Outcome(ended), NOW + timedelta(seconds=1))
    is_done = ended == ChatSession.State.DONE
    assert accuse(join_token("other"), seconds=2) is not is_done


@pytest.mark.parametrize("seconds", [1, 301])
def test_the_end_of_a_session_puts_right_only_who_is_accused_now(
    node: Node, accuse: Callable[..., bool], seconds: int
) -> None:
    endings.finish(begin_chat(), Outcome(ChatSession.State.DONE), NOW)
    node.refresh_from_db()
    assert node.cleared is None
    chat, end = begin_chat(), NOW + timedelta(seconds=seconds)
    accuse(join_token("one"))
    endings.finish(chat, Outcome(ChatSession.State.DONE), end)
    node.refresh_from_db()
    assert node.cleared == (end if seconds == 1 else None)
    endings.finish(begin_chat(), Outcome(ChatSession.State.DONE), end + timedelta(seconds=1))
    node.refresh_from_db()
    assert node.cleared == (end if seconds == 1 else None), "once is enough"


@pytest.mark.parametrize("code", ["busy", "draining", "missing", "move"])
def test_what_is_no_fault_accuses_nobody(node: Node, accuse: Callable[..., bool], code: str) -> None:
    assert [accuse(join_token(owner), code=code) for owner in ("one", "other")] == [False, False]


def test_a_node_on_trial_is_left_out_again_by_the_session_that_tried_it(
    node: Node, accuse: Callable[..., bool]
) -> None:
    accusations.site_saw(node.peer_id, "it said nothing", NOW)
    node.refresh_from_db()
    assert accuse(join_token("one"), seconds=10)
    assert state(node, 29) == State.OPEN
    assert state(node, 30) == State.HALF_OPEN


def test_only_one_session_at_a_time_tries_it(node: Node) -> None:
    Node.objects.update(breaker_until=timezone.now(), breaker_openings=1, breaker_reason="it said nothing")
    chat = begin_chat()
    with pytest.raises(ApiError, match="node shaky is being tried by one session after it failed: it said nothing"):
        begin_chat()
    endings.finish(chat, Outcome(ChatSession.State.CANCELLED), timezone.now())
    begin_chat()


def test_a_session_that_it_carried_to_its_end_clears_it(node: Node) -> None:
    Node.objects.update(breaker_until=timezone.now(), breaker_openings=3, breaker_reason="it said nothing")
    endings.finish(begin_chat(), Outcome(ChatSession.State.DONE), timezone.now())
    node.refresh_from_db()
    assert (node.breaker_until, node.breaker_openings, node.breaker_reason) == (None, 0, "")


@pytest.mark.parametrize("ended", [ChatSession.State.CANCELLED, ChatSession.State.FAILED])
def test_a_session_that_ended_otherwise_clears_nobody(node: Node, ended: str) -> None:
    Node.objects.update(breaker_until=timezone.now(), breaker_openings=3)
    endings.finish(begin_chat(), Outcome(ended), timezone.now())
    node.refresh_from_db()
    assert node.breaker_openings == 3


def test_a_node_that_answers_is_used_again_when_its_time_is_over(node: Node) -> None:
    accusations.site_saw(node.peer_id, "it said nothing", NOW)
    for seconds, after in ((9, State.OPEN), (10, State.CLOSED)):
        node.refresh_from_db()
        accusations.is_well(node, NOW + timedelta(seconds=seconds))
        assert state(node, seconds) == after
    assert node.breaker_openings == 1


def test_an_answer_that_was_overtaken_by_a_failure_changes_nothing(node: Node) -> None:
    accusations.site_saw(node.peer_id, "it said nothing", NOW)
    before = Node.objects.get()
    accusations.site_saw(node.peer_id, "and again", NOW + timedelta(seconds=10))
    accusations.is_well(before, NOW + timedelta(seconds=10))
    assert state(node, 10) == State.OPEN
