"""The mesh as the topology page draws it and says it: who is connected how, who sends steps to whom."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from relay import report
from relay.hub import hub
from relay.report import Figures, Row
from tests.tracker.conftest import MakeNode
from tests.tracker.crowd import crowd
from tests.tracker.dashboard.test_node_list import words
from tests.tracker.people import client_of
from tracker.dashboard import mesh, topology
from tracker.models import ChatSession, LanguageModel, Node, SessionHop
from tracker.relays import relay_of

NOW = timezone.now()
Connect = Callable[[Node], None]
pytestmark = pytest.mark.django_db


def shown(client: Client | None = None, **query: str) -> str:
    response = (client or client_of("viewer")).get("/topology", query)
    assert response.status_code == 200
    return response.content.decode()


@pytest.fixture
def walk(model: LanguageModel) -> Callable[..., None]:
    """A session through these nodes, with the path to each and what half of its steps took there and back."""

    def make(*hops: tuple[Node, str, float | None], **fields: Any) -> None:
        number = ChatSession.objects.count()
        row = {"session_id": f"{number:032}", "completion_id": f"chatcmpl-{number}", "model": model, "seed": 1}
        begun = {"started": timezone.now(), "last_news": timezone.now()}
        session = ChatSession.objects.create(**(row | begun | fields))
        for position, (node, path, network_ms) in enumerate(hops):
            layers = {"start_layer": node.shard.start_layer, "end_layer": node.shard.end_layer}
            hop = {"position": position, "node": node, "node_name": node.name, "path": path}
            SessionHop.objects.create(session=session, network_p50_ms=network_ms, **hop, **layers)

    return make


def test_nodes_stand_below_their_relay_with_layers_round_trip_and_state(make_node: MakeNode, connect: Connect) -> None:
    alpha, beta = make_node("alpha", 0, 6), make_node("beta", 6, 12)
    connect(alpha)
    hub.switchboard.peers[alpha.peer_id].credit.rtt_s = 0.012
    hub.switchboard.peers[alpha.peer_id].version = 2
    page = shown()
    assert "Relay 127.0.0.1:8000: 1 of 2 nodes connected" in page
    assert "0–5 · 12 ms" in page
    assert "6–11 · offline" in page
    assert 'class="branch tunnel"' in page
    assert f'<a href="/nodes/{beta.pk}" tabindex="-1" id="box-{beta.pk}" class="bad"' in page
    assert "alpha online tiny layers 0–5 tunnel 12 ms" in words(page)


def test_lines_lead_from_heads_to_the_nodes_after_them(make_node: MakeNode, walk: Callable[..., None]) -> None:
    a, b, c = make_node("a", 0, 4), make_node("b", 4, 8), make_node("c", 8, 12)
    for network_ms in (10.0, 90.0, 14.0):
        walk((a, "local", None), (b, "tunnel", network_ms), (c, "direct", 3.0), state=ChatSession.State.DONE)
    walk((a, "local", None), (b, "relay", None))
    page = words(shown())
    assert "a b tunnel 14 ms 3 0" in page
    assert "a c direct 3.0 ms 3 0" in page
    assert "a b relay – 1 1" in page
    assert page.index("a b relay") < page.index("a b tunnel"), "what runs now comes first"


def test_a_session_whose_path_isnt_told_yet_goes_the_way_of_the_others(
    make_node: MakeNode, walk: Callable[..., None]
) -> None:
    a, b, c = make_node("a", 0, 4), make_node("b", 4, 8), make_node("c", 8, 12)
    for _ in range(2):
        walk((a, "local", None), (b, "tunnel", 10.0), state=ChatSession.State.DONE)
    walk((a, "local", None), (b, "direct", 2.0), state=ChatSession.State.DONE)
    walk((a, "", None), (b, "", None), (c, "", None))
    page = words(shown())
    assert "a b tunnel 10 ms 3 1" in page
    assert "a c not told yet – 1 1" in page


def test_sessions_of_long_ago_and_routes_that_were_left_draw_nothing(
    make_node: MakeNode, walk: Callable[..., None]
) -> None:
    a, b = make_node("a", 0, 6), make_node("b", 6, 12)
    walk((a, "local", None), (b, "tunnel", 1.0), started=NOW - timedelta(hours=2))
    walk((a, "local", None), (b, "tunnel", 1.0), epoch=1)
    assert "No session of the last hour went through more than one node." in shown()


def test_a_node_that_listens_says_so(make_node: MakeNode) -> None:
    endpoint = {"endpoint": "http://10.0.0.1:9000", "endpoint_address": "10.0.0.1"}
    make_node("alpha", uses_relay=False, endpoint_proved_until=NOW + timedelta(hours=1), **endpoint)
    page = shown()
    assert "0–11 · direct" in page
    assert "direct-mark" in page
    assert "branch" not in page.split("figcaption")[0]


def test_models_stand_below_the_relay_that_their_nodes_share(
    make_node: MakeNode, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RELAY_URLS = ["wss://a.example.org", "wss://b.example.org"]
    names = {relay_of(f"model-{number}", settings.RELAY_URLS): f"model-{number}" for number in range(20)}
    rows = []
    for url, name in names.items():
        node = make_node(f"of-{name}", model=LanguageModel.objects.create(name=name, num_layers=12))
        rows.append(Row(node.peer_id, name, url, "", 2, 1.0, Figures(0, 0, 0, 0.005, 0)))
    monkeypatch.setattr(report, "rows", lambda: rows)
    page = shown()
    assert "Relay a.example.org: 1 of 1 nodes connected" in page
    assert "Relay b.example.org: 1 of 1 nodes connected" in page
    assert "wss://a.example.org 5.0 ms" in words(page)


def test_who_wasnt_heard_of_for_a_day_or_is_revoked_isnt_drawn(make_node: MakeNode) -> None:
    make_node("gone", last_seen=NOW - timedelta(days=1, seconds=1))
    make_node("revoked", status=Node.Status.REVOKED)
    assert "No node was heard of within a day." in shown()
    make_node("here")
    page = shown()
    assert ("here" in page, ">gone<" in page, ">revoked<" in page) == (True, False, False)


def test_it_can_be_narrowed_to_a_model(make_node: MakeNode) -> None:
    make_node("alpha")
    make_node("beta", model=LanguageModel.objects.create(name="other", num_layers=12))
    page = shown(model="other")
    assert ("beta" in page, "alpha" in page) == (True, False)
    assert "No node of this model" in shown(model="none\0 such")


def test_of_very_many_it_says_how_many_it_leaves_out(
    make_node: MakeNode, walk: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh, "MAX_NODES", 3)
    monkeypatch.setattr(topology, "MAX_DRAWN", 1)
    nodes = [make_node(f"node-{number}") for number in range(5)]
    for node in nodes[1:]:
        walk((nodes[0], "local", None), (node, "tunnel", 1.0))
    page = shown()
    assert "2 more nodes aren't shown: choose a model." in words(page)
    assert "Of the lines the 1 that were used most are drawn; 1 more are not." in words(page)
    assert page.count('<a href="/nodes/') == 2 * 3


def test_long_names_are_cut_in_the_picture_and_markup_is_escaped(make_node: MakeNode) -> None:
    make_node("alpha of the seven seas")
    assert ">alpha of the s…</text>" in shown()
    crowd(20, 20, num_samples=0, spice="<i>")
    assert "<i>" not in shown(client_of("operator"))


def test_200_nodes_take_as_many_queries_as_20(django_assert_max_num_queries: Any) -> None:
    made = crowd(200, 400, num_samples=0)
    client = client_of("viewer")
    with made.connected(), django_assert_max_num_queries(10):
        page = shown(client)
    assert len(re.findall('class="box"', page)) == 190
