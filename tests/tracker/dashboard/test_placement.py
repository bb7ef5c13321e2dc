"""The placement page: what it tells of moves, and what operators do with them; the what-if page, by its URL."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.test import Client

from tests.tracker.conftest import MakeNode
from tests.tracker.people import client_of
from tracker.dashboard import what_if as module
from tracker.dashboard.reckoning import reckoning
from tracker.meshes import Mesh
from tracker.models import AuditEntry, LanguageModel, Move, Node

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


@pytest.fixture
def move(make_node: MakeNode) -> Move:
    make_node("beta", 6, 12)
    node = make_node("alpha", 0, 6, picks_layers=True)
    layers = {"from_start": 0, "from_end": 6, "to_start": 6, "to_end": 12}
    return Move.objects.create(model=node.model, node=node, gain=1.53, reason="The weakest are layers 6–11.", **layers)


def shown(client: Client, path: str = "/placement") -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def do(client: Client, path: str, **sent: str) -> tuple[int, str]:
    answer: Any = client.post(path, sent, headers=HTMX)
    return answer.status_code, answer.content.decode()


def test_a_proposal_says_from_where_to_where_for_how_much_and_why(move: Move) -> None:
    page = shown(client_of("viewer"))
    assert "layers 0–5 → <strong>layers 6–11</strong>, ×1.53" in page
    assert "The weakest are layers 6–11." in page
    assert "Of 2 nodes 1 leaves the choice of layers to the site." in page
    assert "Accept" not in page, "a viewer only looks"
    assert "Accept" in shown(client_of("operator"))


def test_an_operator_accepts_a_move_once(move: Move) -> None:
    operator = client_of("operator")
    assert do(operator, f"/moves/{move.pk}/accept")[0] == 200
    move.refresh_from_db()
    assert (move.state, move.decided_by) == (Move.State.ACCEPTED, "one-operator")
    assert AuditEntry.objects.get().action == "accept move"
    status, words = do(operator, f"/moves/{move.pk}/accept")
    assert (status, "isn&#x27;t proposed any more" in words) == (409, True)


def test_an_operator_drops_a_move_and_says_why(move: Move) -> None:
    operator = client_of("operator")
    assert do(operator, f"/moves/{move.pk}/drop", why="it is fine there")[0] == 200
    move.refresh_from_db()
    assert (move.state, move.outcome) == (Move.State.DROPPED, "one-operator dropped it: it is fine there")
    assert "it is fine there" in shown(operator)
    assert do(operator, f"/moves/{move.pk}/drop")[0] == 409


def test_the_setting_is_one_of_three(move: Move) -> None:
    operator, path = client_of("operator"), f"/placement/{move.model_id}/rebalancing"
    assert do(operator, path, rebalancing="automatic")[0] == 200
    assert LanguageModel.objects.get().rebalancing == "automatic"
    assert AuditEntry.objects.get().details == {"from": "propose", "to": "automatic"}
    assert do(operator, path, rebalancing="sometimes") == (409, do(operator, path)[1])


def test_a_gap_is_told(make_node: MakeNode) -> None:
    make_node("alpha", 0, 6)
    assert "Nobody holds layers 6–11: no chat can be answered." in shown(client_of("viewer"))


WHAT_IF = "/placement/what-if?"
IMAGINED = WHAT_IF + "num_layers=32&layer_mb=400&tail_mb=500&head_mb=500&weights=int4"


def test_imagined_machines_are_placed_and_reckoned() -> None:
    page = shown(client_of("viewer"), IMAGINED + "&count1=2&memory1=4&bandwidth1=40&rtt1=20")
    assert "imagined 1.1" in page
    assert "layers 0–15" in page or "layers 0–" in page
    assert "tokens a second, to one chat alone" in page


def test_machines_over_the_most_are_left_out_in_words() -> None:
    page = shown(client_of("viewer"), WHAT_IF + "num_layers=4&layer_mb=400&count1=20&count2=20")
    assert "Only the first 24 machines are reckoned with here: 16 more are left out." in page
    assert "left out." not in shown(client_of("viewer"), WHAT_IF + "num_layers=4&layer_mb=400&count1=20")


def test_what_is_too_little_says_how_much_more() -> None:
    page = shown(client_of("viewer"), IMAGINED + "&count1=1&memory1=2")
    assert "no chat can be answered" in page
    assert "more would close layer" in page, page


def test_a_known_machine_counts_as_it_was_measured(make_node: MakeNode, model: LanguageModel) -> None:
    LanguageModel.objects.update(layer_bytes=100, tail_bytes=200)
    sizes = {"budget_bytes": 10_000, "layer_bytes": 120, "ms_per_layer": 2.0, "rtt_ms": 10.0}
    node = make_node("alpha", 0, 12, **sizes)
    client = client_of("viewer")
    same = shown(client, f"{WHAT_IF}model=tiny&node-{node.pk}=on")
    assert '<td class="number">28 ms</td>' in same, "twelve layers and an output of two"
    other = shown(client, f"{WHAT_IF}num_layers=6&layer_mb=0.001&node-{node.pk}=on")
    assert '<td class="number">120 ms</td>' in other, "each of ten times the bytes"
    assert "checked" in other


def test_what_takes_too_long_and_whoever_comes_meanwhile_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    client, path = client_of("viewer"), IMAGINED + "&count1=3&memory1=5"
    with reckoning():
        monkeypatch.setattr(module, "reckoning", partial(reckoning, wait_s=0.01))
        assert "load it again in a few seconds" in shown(client, path)
    monkeypatch.setattr(module, "reckoning", partial(reckoning, most_s=0.0))
    assert "too much for a page to reckon" in shown(client, path)
    monkeypatch.setattr(module, "reckoning", reckoning)
    assert "imagined 1.1" in shown(client, path), "neither is kept"
    with reckoning():
        assert "imagined 1.1" in shown(client, path), "what was reckoned is"


def test_placements_are_kept_for_the_last_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_kept", kept := dict[Mesh, Mesh]())
    for number in range(1, module.MOST_KEPT + 3):
        module.planned(Mesh(number, ()))
    assert [mesh.num_layers for mesh in kept] == [*range(3, module.MOST_KEPT + 3)]


def test_nothing_watches_what_if() -> None:
    assert 'id="live"' not in shown(client_of("viewer"), WHAT_IF)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "Say which model and which machines"),
        ("model=tiny", "Say how many layers it has and what one takes in MB: no node of tiny has told it."),
        ("model=huge", "No model here is called so."),
        ("num_layers=9999&layer_mb=1", "less than or equal to 1024"),
        ("num_layers=2&layer_mb=many", "Enter a number."),
        ("num_layers=2&layer_mb=nan&count1=1", "Enter a number."),
        ("num_layers=2&layer_mb=1", "Pick machines that are known"),
        ("num_layers=2&layer_mb=1&node-x=on&node-99999999999999999999=on", "Pick machines that are known"),
    ],
)
def test_what_cannot_be_reckoned_is_said(model: LanguageModel, query: str, words: str) -> None:
    assert words in shown(client_of("viewer"), WHAT_IF + query)


def test_what_is_asked_stands_in_the_form_again(model: LanguageModel) -> None:
    page = shown(client_of("viewer"), IMAGINED + "&count2=3&memory2=24")
    assert 'name="memory2" value="24"' in page
    assert '<option value="int4" selected>' in page
    assert Node.objects.count() == 0
