"""Moves of nodes: proposed by the tick, decided on, carried out; no chat loses its way by one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tracker import moves
from tracker.models import ChatSession, LanguageModel, Move, Node, SessionHop
from tracker.rebalancing import LOOKS_AGAIN, Rebalancer

NOW = timezone.now()
State, Rebalancing = Move.State, LanguageModel.Rebalancing
MakeAuto = Callable[..., Node]
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def settled(settings: Settings) -> None:
    settings.REBALANCE_SETTLE_S = 30


@pytest.fixture
def rebalancer() -> Rebalancer:
    return Rebalancer()


@pytest.fixture
def make_auto(make_node: MakeNode, connect: Callable[[Node], None]) -> MakeAuto:
    """A node online with memory for six layers that leaves their choice to the site."""

    def make(name: str, start_layer: int, end_layer: int, **fields: Any) -> Node:
        sizes = {"budget_bytes": 600, "layer_bytes": 100, "ms_per_layer": 1.0, "rtt_ms": 10.0}
        row = sizes | {"picks_layers": True, "state": "serving", "lease_until": NOW + timedelta(days=1)} | fields
        node = make_node(name, start_layer, end_layer, **row)
        if node.lease_until and node.lease_until > NOW:
            connect(node)
        return node

    return make


@pytest.fixture
def busy(model: LanguageModel) -> None:
    """200 tokens a second were asked for lately."""
    done = {"state": ChatSession.State.DONE, "ended": NOW, "completion_tokens": 120_000}
    ChatSession.objects.create(session_id="0" * 32, completion_id="zero", model=model, seed=1, started=NOW, **done)


@pytest.fixture
def lopsided(make_auto: MakeAuto, busy: None) -> list[Node]:
    """Three hold the first half of the layers, one the other: moving one of the three gives twice as much."""
    return [*(make_auto(name, 0, 6) for name in "abc"), make_auto("d", 6, 12)]


def only() -> Move:
    return Move.objects.select_related("node", "model").get()


def test_a_clear_gain_is_proposed_once_with_its_reason(lopsided: list[Node], rebalancer: Rebalancer) -> None:
    for _ in range(2):
        rebalancer.look(NOW)
    Rebalancer().look(NOW)  # of another process
    move = only()
    assert (move.state, move.origin, move.target) == (State.PROPOSED, (0, 6), (6, 12))
    assert move.gain == pytest.approx(2.0)
    assert move.reason == "The weakest are layers 6–11: from 166.7 to 333.3 tokens/s, one step at a time."


def test_where_there_is_enough_no_layer_shall_hang_on_one_machine(make_auto: MakeAuto, rebalancer: Rebalancer) -> None:
    for name in "abc":
        make_auto(name, 0, 6)
    make_auto("d", 6, 12)
    rebalancer.look(NOW)
    assert only().target == (6, 12)
    assert only().reason == "Layers that hang on one machine: layers 6–11; none do then."
    make_auto("e", 6, 12)
    rebalancer.look(NOW)
    assert not Move.objects.exists()


def test_what_is_no_longer_worth_it_is_withdrawn(
    lopsided: list[Node], make_auto: MakeAuto, rebalancer: Rebalancer
) -> None:
    rebalancer.look(NOW)
    make_auto("e", 6, 12)
    rebalancer.look(NOW)
    assert not Move.objects.exists()


def test_where_it_is_off_nothing_is_proposed(lopsided: list[Node], rebalancer: Rebalancer) -> None:
    rebalancer.look(NOW)
    LanguageModel.objects.update(rebalancing=Rebalancing.OFF)
    rebalancer.look(NOW)
    assert not Move.objects.exists()


def test_what_somebody_dropped_is_not_proposed_again_that_day(lopsided: list[Node], rebalancer: Rebalancer) -> None:
    rebalancer.look(NOW)
    assert moves.drop(only(), "olga", "not now", NOW)
    for later in (timedelta(0), LOOKS_AGAIN):
        Rebalancer().look(NOW + later)
    assert (only().state, only().decided_by, only().outcome) == (State.DROPPED, "olga", "not now")


def test_a_move_begins_when_it_is_accepted_and_takes_no_new_sessions(
    lopsided: list[Node], rebalancer: Rebalancer
) -> None:
    rebalancer.look(NOW)
    assert moves.accept(only(), "olga", NOW)
    assert not moves.accept(only(), "otto", NOW)
    rebalancer.look(NOW)
    move = only()
    assert (move.state, move.decided_by, move.node.is_moving) == (State.ACCEPTED, "olga", True)
    assert move.node.closed_to_sessions(NOW) == "is about to take other layers"
    assert moves.drop(move, "olga", "not after all", NOW)
    assert not only().node.is_moving


def test_a_node_that_sessions_still_go_through_does_not_hear_of_its_move(
    lopsided: list[Node], rebalancer: Rebalancer
) -> None:
    rebalancer.look(NOW)
    moves.accept(only(), "olga", NOW)
    rebalancer.look(NOW)
    node = only().node
    session = ChatSession.objects.create(
        session_id="1" * 32, completion_id="one", model=node.model, seed=1, started=NOW, last_news=NOW
    )
    SessionHop.objects.create(session=session, node=node, node_name=node.name, position=0, start_layer=0, end_layer=6)
    assert moves.place_of(node, NOW) is None
    ChatSession.objects.update(state=ChatSession.State.DONE)
    assert moves.place_of(node, NOW) == {"start_layer": 6, "end_layer": 12, "move": only().pk}
    assert only().state == State.LOADING
    assert not moves.drop(only(), "olga", "too late", NOW)


def test_a_move_waits_while_its_layers_would_be_left_alone(
    make_auto: MakeAuto, model: LanguageModel, rebalancer: Rebalancer
) -> None:
    first, last = make_auto("a", 0, 6), make_auto("b", 6, 12)
    layers = {"from_start": 0, "from_end": 6, "to_start": 3, "to_end": 9, "gain": 2.0, "reason": "why"}
    move = Move.objects.create(model=model, node=first, state=State.ACCEPTED, changed=NOW, **layers)
    rebalancer.look(NOW)
    assert not Node.objects.get(pk=first.pk).is_moving
    spare = make_auto("c", 0, 6)
    rebalancer.look(NOW)
    assert Node.objects.get(pk=first.pk).is_moving
    Node.objects.filter(pk=spare.pk).update(lease_until=NOW - timedelta(seconds=1))
    rebalancer.look(NOW)
    assert not Node.objects.get(pk=first.pk).is_moving, "it is needed where it is"
    rebalancer.look(NOW + moves.BEGINS_WITHIN + timedelta(seconds=1))
    move.refresh_from_db()
    assert (move.state, last.is_moving) == (State.DROPPED, False)
    assert move.outcome == "It couldn't begin within 30 minutes: its layers had nobody else all the while."


def test_a_gap_is_closed_though_the_node_is_alone_with_its_layers(make_auto: MakeAuto, rebalancer: Rebalancer) -> None:
    LanguageModel.objects.update(rebalancing=Rebalancing.AUTOMATIC)
    make_auto("a", 0, 6, budget_bytes=1200)
    rebalancer.look(NOW)
    move = only()
    assert (move.state, move.target, move.decided_by) == (State.ACCEPTED, (0, 12), "automatic")
    assert move.reason == "Nobody holds layers 6–11; every layer is held then."
    assert move.node.is_moving


def test_automatic_moves_wait_for_a_node_that_may_only_be_starting_again(
    lopsided: list[Node], make_auto: MakeAuto, rebalancer: Rebalancer
) -> None:
    LanguageModel.objects.update(rebalancing=Rebalancing.AUTOMATIC)
    make_auto("e", 6, 12, lease_until=NOW - timedelta(seconds=10))
    rebalancer.look(NOW)
    assert not Move.objects.exists(), "with it nothing would be gained"
    rebalancer.look(NOW + timedelta(seconds=30))
    assert only().state == State.ACCEPTED


def test_a_node_that_only_uses_fewer_of_its_layers_is_not_drained(
    make_auto: MakeAuto, busy: None, rebalancer: Rebalancer
) -> None:
    LanguageModel.objects.update(rebalancing=Rebalancing.AUTOMATIC)
    make_auto("slow", 0, 12, budget_bytes=1200, ms_per_layer=2.0)
    make_auto("fast", 0, 11, budget_bytes=1100, ms_per_layer=0.1)
    rebalancer.look(NOW)
    move, node = only(), Node.objects.get(name="slow")
    assert (move.state, move.node, move.target) == (State.DONE, node, (11, 12))
    assert "It has them in memory: nothing is loaded." in move.reason
    assert (node.shard.start_layer, node.shard.loaded, node.is_moving) == (11, (0, 12), False)
    assert moves.place_of(node, NOW) is None
    Node.objects.filter(name="fast").update(is_registered=False, lease_until=NOW)
    rebalancer.look(NOW + timedelta(seconds=31))
    widened = Move.objects.latest("pk")
    assert (widened.state, widened.target) == (State.DONE, (0, 12)), "it has them still"


def test_who_has_moved_stays_for_an_hour_unless_there_is_a_gap(
    lopsided: list[Node], make_auto: MakeAuto, rebalancer: Rebalancer
) -> None:
    done = {"from_start": 6, "from_end": 12, "to_start": 0, "to_end": 6, "gain": 2.0, "reason": "why"}
    for node in lopsided[:3]:
        Move.objects.create(model=node.model, node=node, state=State.DONE, changed=NOW, **done)
    rebalancer.look(NOW)
    assert not Move.objects.filter(state=State.PROPOSED).exists(), "what looks slow now may be fast in a minute"
    Node.objects.filter(name="d").update(is_registered=False)
    rebalancer.look(NOW)
    assert Move.objects.get(state=State.PROPOSED).target == (6, 12)


def test_a_node_that_does_not_come_back_is_not_waited_for(lopsided: list[Node], rebalancer: Rebalancer) -> None:
    rebalancer.look(NOW)
    Move.objects.update(state=State.LOADING, changed=NOW)
    Node.objects.update(last_seen=NOW)
    rebalancer.look(NOW + moves.COMES_BACK_WITHIN)
    assert only().state == State.LOADING
    rebalancer.look(NOW + moves.COMES_BACK_WITHIN + timedelta(seconds=1))
    assert (only().state, only().outcome) == (State.DROPPED, "The node hasn't been heard of since.")


def test_a_move_of_a_node_that_the_operator_pauses_is_dropped(lopsided: list[Node], rebalancer: Rebalancer) -> None:
    rebalancer.look(NOW)
    moves.accept(only(), "olga", NOW)
    Node.objects.update(duty=Node.Duty.PAUSED)
    rebalancer.look(NOW)
    assert only().outcome.startswith("The operator has it paused")


def test_one_node_moves_at_a_time(lopsided: list[Node], model: LanguageModel, rebalancer: Rebalancer) -> None:
    for node in lopsided[:2]:
        layers = {"from_start": 0, "from_end": 6, "to_start": 6, "to_end": 12, "gain": 2.0, "reason": "why"}
        Move.objects.create(model=model, node=node, state=State.ACCEPTED, changed=NOW, **layers)
    for _ in range(2):
        rebalancer.look(NOW)
    assert Node.objects.filter(is_moving=True).count() == 1
