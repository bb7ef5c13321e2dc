"""Layers that the site chooses for nodes that register, as the nodes hear of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from tests.tracker.views.test_nodes import FACTS, Token, beat, error_of, key_in, register
from tracker.credentials import Credential
from tracker.models import JoinToken, LanguageModel, Move, Node

pytestmark = pytest.mark.django_db

AUTO = {"layers": "auto", "start_layer": None, "end_layer": None}
SIZES = {"layer_bytes": 100, "head_bytes": 10, "tail_bytes": 20}


def join(credential: Credential, name: str, layers: int = 6, **fields: Any) -> Any:
    """A machine with memory for so many layers, the first or the last of the model among them."""
    budget = {"budget_bytes": layers * 100 + 20}
    return register(credential, name=name, **(AUTO | SIZES | budget | fields))


def layers_in(answer: Any) -> tuple[int, int]:
    told = answer.json()
    return told["start_layer"], told["end_layer"]


def test_nodes_that_begin_together_share_the_model(join_token: Token) -> None:
    answers = [join(join_token[1], f"node-{number}") for number in range(3)]
    assert [layers_in(answer) for answer in answers] == [(0, 6), (6, 12), (0, 6)]
    assert answers[1].json()["reason"] == "Nobody held layers 6–11: with them every layer is held."
    assert Node.objects.get(name="node-1").shard.reason == answers[1].json()["reason"]


def test_a_node_that_named_its_layers_counts_and_hears_no_reason(join_token: Token) -> None:
    named = register(join_token[1], name="named", start_layer=0, end_layer=6)
    assert (named.json()["reason"], layers_in(join(join_token[1], "node-1"))) == ("", (6, 12))


def test_a_node_that_comes_again_keeps_its_layers(join_token: Token) -> None:
    key = key_in(join(join_token[1], "node-1"))
    Node.objects.update(lease_until=timezone.now() - timedelta(hours=1))
    join(join_token[1], "node-2")
    assert layers_in(join(key, "node-1", ms_per_layer=9.0)) == (0, 6)
    assert layers_in(join(key, "node-1", layers=3)) == (6, 9), "it has less memory now"


def test_a_node_that_comes_with_another_model_gets_other_layers(join_token: Token) -> None:
    key = key_in(join(join_token[1], "node-1", 3))
    join(join_token[1], "other", 4, model=FACTS | {"name": "other"})
    assert layers_in(join(key, "node-1", 6, model=FACTS | {"name": "other"})) == (4, 10)


def test_who_waits_for_approval_is_counted_by_others_who_wait_alone(join_token: Token) -> None:
    waiting = JoinToken(needs_approval=True)
    credential = waiting.give_secret()
    waiting.save()
    assert [layers_in(join(credential, name)) for name in ("one", "two")] == [(0, 6), (6, 12)]
    assert layers_in(join(join_token[1], "approved")) == (0, 6)


@pytest.mark.parametrize("fields", [{"duty": "draining"}, {"duty": "paused"}, {"status": "revoked"}])
def test_who_is_on_its_way_out_is_not_counted(join_token: Token, fields: dict[str, str]) -> None:
    join(join_token[1], "leaving")
    Node.objects.update(**fields)
    assert layers_in(join(join_token[1], "node-1")) == (0, 6)


def test_a_node_without_room_for_a_layer_is_told_so(join_token: Token) -> None:
    status, code, message = error_of(join(join_token[1], "small", budget_bytes=50))
    assert (status, code) == (409, "no_room")
    assert message.startswith("the site finds no layers for node small: one layer takes")
    assert not Node.objects.exists()


@pytest.mark.parametrize("missing", ["budget_bytes", "layer_bytes"])
def test_a_node_says_what_it_has_room_for(join_token: Token, missing: str) -> None:
    status, code, message = error_of(join(join_token[1], "node-1", **dict[str, Any]({missing: None})))
    assert (status, code) == (400, "bad_request")
    assert "layers: auto needs budget_bytes and layer_bytes" in message


def test_what_a_layer_weighs_is_kept_with_the_model(join_token: Token) -> None:
    join(join_token[1], "node-1", model=FACTS | {"layer_bytes": 7, "head_bytes": 8, "tail_bytes": 9})
    model = LanguageModel.objects.get()
    assert (model.layer_bytes, model.head_bytes, model.tail_bytes) == (7, 8, 9)


def accepted(node: Node, start: int, end: int, **fields: Any) -> Move:
    before = {"from_start": node.shard.start_layer, "from_end": node.shard.end_layer}
    row = before | {"to_start": start, "to_end": end, "gain": 2.0, "reason": "why", "state": Move.State.LOADING}
    return Move.objects.create(model=node.model, node=node, **(row | fields))


def test_a_node_hears_of_a_move_once_it_is_drained_and_registers_with_the_new_layers(join_token: Token) -> None:
    key = key_in(join(join_token[1], "node-1"))
    node = Node.objects.get()
    move = accepted(node, 6, 12, state=Move.State.ACCEPTED)
    assert beat(key).json()["place"] is None
    Node.objects.update(is_moving=True)
    assert beat(key, {"sessions": 1}).json()["place"] is None
    place = {"start_layer": 6, "end_layer": 12, "move": move.pk}
    assert beat(key, {"sessions": 0}).json()["place"] == place
    assert beat(key).json()["place"] == place, "the answer may have been lost"
    answer = join(key, "node-1", move=move.pk)
    assert (layers_in(answer), answer.json()["reason"]) == ((6, 12), "why")
    assert beat(key, {"state": "loading"}).json()["place"] is None
    assert Move.objects.get().state == Move.State.LOADING
    beat(key, {"state": "serving"})
    assert (Move.objects.get().state, Node.objects.get().is_moving) == (Move.State.DONE, False)


def test_a_node_that_starts_anew_amid_a_move_ends_it(join_token: Token) -> None:
    key = key_in(join(join_token[1], "node-1"))
    accepted(Node.objects.get(), 6, 12)
    assert layers_in(join(key, "node-1")) == (6, 12)


def test_a_move_that_fails_takes_the_node_back_and_says_why(join_token: Token) -> None:
    key = key_in(join(join_token[1], "node-1"))
    move = accepted(Node.objects.get(), 6, 12)
    assert layers_in(join(key, "node-1", move=move.pk)) == (6, 12)
    failed = {"move": move.pk, "reason": "the hub is away"}
    assert layers_in(join(key, "node-1", failed_move=failed)) == (0, 6)
    move.refresh_from_db()
    assert (move.state, move.outcome) == (Move.State.DROPPED, "The node couldn't: the hub is away")
    assert layers_in(join(key, "node-1", failed_move=failed)) == (0, 6), "it says so again"


def test_a_node_that_has_less_memory_by_then_keeps_what_it_has(join_token: Token) -> None:
    key = key_in(join(join_token[1], "node-1", 3))
    move = accepted(Node.objects.get(), 6, 12)
    assert layers_in(join(key, "node-1", 3, move=move.pk)) == (0, 3)
    assert Move.objects.get().outcome == "Its memory doesn't hold these layers any more."


def test_a_node_whose_owner_names_its_layers_moves_no_more(join_token: Token) -> None:
    key = key_in(join(join_token[1], "node-1"))
    accepted(Node.objects.get(), 6, 12)
    assert layers_in(register(key, start_layer=0, end_layer=3)) == (0, 3)
    assert (Move.objects.get().state, Node.objects.get().picks_layers) == (Move.State.DROPPED, False)


def test_what_its_endpoint_has_proved_is_void_with_other_layers_which_it_loads_first(
    join_token: Token, settings: Settings
) -> None:
    settings.ALLOW_PRIVATE_ENDPOINTS = True
    nobody: dict[str, Any] = {"relay": False, "endpoint": "http://127.0.0.1:9"}
    key = key_in(join(join_token[1], "node-1", **nobody))
    later = timezone.now() + timedelta(seconds=60)
    Node.objects.update(endpoint_address="127.0.0.1", endpoint_proved_until=later)
    join(key, "node-1", **nobody)
    assert Node.objects.get().endpoint_proved_until == later
    move = accepted(Node.objects.get(), 6, 12)
    join(key, "node-1", move=move.pk, **nobody)
    assert Node.objects.get().endpoint_proved_until is None
