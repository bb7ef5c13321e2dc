"""A node's page: what it tells, and what operators do there."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tests.tracker.crowd import crowd
from tests.tracker.dashboard.test_node_list import words
from tests.tracker.people import client_of
from tracker.dashboard.node_actions import offered
from tracker.models import AuditEntry, Contribution, Move, Node, NodeSample

NOW = timezone.now()
Connect = Callable[[Node], None]
pytestmark = pytest.mark.django_db


def shown(node: Node, client: Client | None = None) -> str:
    response = (client or client_of("viewer")).get(f"/nodes/{node.pk}")
    assert response.status_code == 200
    return response.content.decode()


def post(node: Node, name: str, role: str = "operator", **fields: str) -> Any:
    return client_of(role).post(f"/nodes/{node.pk}/{name}", fields, headers={"HX-Request": "true"})


def test_it_tells_of_the_node_all_that_the_site_knows(make_node: MakeNode, connect: Connect) -> None:
    node = make_node("alpha", 0, 6, device="cuda", memory_bytes=24_000_000_000, version="0.4", picks_layers=True)
    node.shard.reason = "nobody held them"
    node.shard.save()
    connect(node)
    for minute in range(3):
        NodeSample.objects.create(node=node, at=NOW - timedelta(minutes=minute), hop_ms=30.0, bytes_in=5_000_000)
    Contribution.objects.create(node=node, node_name="a", day=NOW.date(), model_name="tiny", token_layers=2_000)
    page = shown(node)
    for said in (
        "online connected to the relay",
        "Layers layers 0–5 of 12",
        "this site: nobody held them",
        "Computes on cuda",
        "24 GB",
        "Program 0.4",
        "wire version 1",
        "2,000",
    ):
        assert said in words(page)
    assert 'aria-label="a step: 30 ms now, 30 ms within the last 2 hours"' in page
    assert 'aria-label="sent: 5.0 MB now, 5.0 MB within the last 2 hours; received: 0 B now' in page
    assert node.peer_id not in page


def test_its_sessions_and_failovers_lead_to_their_pages() -> None:
    made = crowd(20, 100, num_samples=0)
    lost = next(node for node in made.nodes if node.failovers.exists())
    failover = lost.failovers.latest("pk")
    page = shown(lost)
    link = f'<a href="/sessions/{failover.session.completion_id}/0"><code>{failover.session.short_id}</code></a>'
    assert page.count(link) == 2
    assert failover.session.session_id not in page
    assert f"node_failed: no path works said by {failover.reported_by}" in words(page)


def test_a_move_says_where_to_and_why(make_node: MakeNode) -> None:
    node = make_node("alpha")
    Move.objects.create(
        model=node.model,
        node=node,
        from_start=0,
        from_end=6,
        to_start=6,
        to_end=12,
        gain=2,
        reason="they are held once",
    )
    assert "proposed from layers 0–5 to layers 6–11: they are held once" in words(shown(node))


def test_a_node_that_has_just_joined_has_a_page(make_node: MakeNode) -> None:
    page = words(shown(make_node("alpha")))
    for said in ("No session has come to it yet.", "No session had to go on without it.", "Nothing measured."):
        assert said in page


def test_a_node_that_is_not_there_is_not_found(make_node: MakeNode) -> None:
    node = make_node("alpha")
    client = client_of("operator")
    Node.objects.all().delete()
    assert client.get(f"/nodes/{node.pk}").status_code == 404
    assert client.post(f"/nodes/{node.pk}/pause").status_code == 404


def test_names_with_markup_are_escaped() -> None:
    made = crowd(20, 40, num_samples=1, spice="<i>")
    client = client_of("operator")
    for node in made.nodes[6:10]:
        assert "<i>" not in shown(node, client)


def test_only_operators_are_offered_actions(make_node: MakeNode) -> None:
    node = make_node("alpha")
    assert "hx-post" not in shown(node)
    offers = re.findall(rf'hx-post="/nodes/{node.pk}/(\w+)"', shown(node, client_of("operator")))
    assert offers == ["pause", "drain", "rotate_key", "revoke", "ban"]


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        ({"status": "pending"}, "approve", {"status": "approved"}),
        ({}, "pause", {"duty": "paused"}),
        ({}, "drain", {"duty": "draining"}),
        ({"duty": "paused"}, "resume", {"duty": "works"}),
        ({"banned_until": NOW + timedelta(days=1)}, "lift_ban", {"banned_until": None}),
        ({}, "revoke", {"status": "revoked"}),
    ],
)
def test_an_action_is_carried_out_said_and_written_down(
    make_node: MakeNode, before: dict[str, Any], name: str, after: dict[str, Any]
) -> None:
    node = make_node("alpha", **before)
    answer = post(node, name, why="a new disk")
    assert answer.status_code == 200
    assert "alpha" in answer.content.decode()
    node.refresh_from_db()
    assert {field: getattr(node, field) for field in after} == after
    entry = AuditEntry.objects.get()
    assert (entry.actor_name, entry.target, entry.reason) == ("one-operator", "alpha", "a new disk")


def test_a_node_is_banned_for_a_while_with_a_reason(make_node: MakeNode) -> None:
    node = make_node("alpha")
    assert "say why" in post(node, "ban", lasts="1h").content.decode()
    assert "Say how long" in post(node, "ban", lasts="1y", why="it lies").content.decode()
    assert post(node, "ban", lasts="1h", why="it lies").status_code == 200
    node.refresh_from_db()
    assert node.banned_until is not None
    assert (node.ban_reason, AuditEntry.objects.get().action) == ("it lies", "ban")
    assert "it lies" in words(shown(node))


def test_what_cant_be_done_is_said_and_changes_nothing(make_node: MakeNode) -> None:
    answer = post(make_node("alpha"), "approve")
    assert (answer.status_code, "alpha is approved already" in answer.content.decode()) == (409, True)
    assert not AuditEntry.objects.exists()


def test_only_operators_act(make_node: MakeNode) -> None:
    node = make_node("alpha")
    assert post(node, "pause", "viewer").status_code == 403
    assert post(node, "ban", "nobody", why="x", lasts="1h").status_code == 403
    assert post(node, "pause", "anonymous").status_code == 401
    assert post(node, "nothing").status_code == 404
    assert client_of("operator").get(f"/nodes/{node.pk}/pause").status_code == 405
    node.refresh_from_db()
    assert (node.duty, node.banned_until) == ("works", None)


def test_what_is_offered_is_never_refused() -> None:
    made = crowd(20, 0, num_samples=0)
    for node in made.nodes[4:10]:
        for offer in [*offered(node, timezone.now())[0][:1], *offered(node, timezone.now())[1][:1]]:
            assert post(node, offer.name).status_code == 200, (node.name, offer.name)


def test_it_takes_few_queries_whatever_came_to_the_node(django_assert_max_num_queries: Any) -> None:
    made = crowd(20, 100, num_samples=3)
    client = client_of("viewer")
    with django_assert_max_num_queries(13):
        shown(made.nodes[0], client)
