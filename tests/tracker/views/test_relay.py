from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from relay import auth, report
from relay.hub import hub
from relay.wire import Code
from tests.tracker.conftest import MakeNode
from tracker.models import AuditEntry, Node

pytestmark = pytest.mark.django_db

Connect = Callable[[Node], None]


def page(client: Client, **query: str) -> str:
    response = client.get("/admin/relay/", query)
    assert response.status_code == 200
    return response.content.decode()


def cells(html: str) -> list[list[str]]:
    """The table's rows as people read them."""
    rows = [re.findall(r"<t[hd].*?</t[hd]>", row, re.S) for row in re.findall(r"<tr>(.*?)</tr>", html, re.S)]
    return [[" ".join(re.sub(r"<.*?>", " ", cell).split()) for cell in row] for row in rows]


def test_only_staff_see_who_is_connected(client: Client, django_user_model: Any) -> None:
    assert client.get("/admin/relay/").status_code == 302
    client.force_login(django_user_model.objects.create_user("somebody"))
    for path in ("/admin/relay/", "/admin/relay/?live"):
        assert client.get(path).status_code == 302


def test_the_admin_leads_to_it(operator: Client) -> None:
    index = operator.get("/admin/").content.decode()
    assert '<a href="/admin/relay/"' in index
    assert 'href="/admin/relay/" aria-current="page"' in page(operator)


def test_before_anybody_has_joined_it_says_what_to_do(operator: Client, settings: Settings) -> None:
    settings.PUBLIC_URL = "https://mesh.example.org"
    shown = page(operator)
    assert "/admin/tracker/jointoken/add/" in shown
    assert "MESHNET_JOIN_TOKEN=TOKEN python manage.py runnode --tracker https://mesh.example.org --model" in shown


def test_where_nobody_is_connected_it_says_where_to_look(operator: Client, make_node: MakeNode) -> None:
    make_node("node-a")
    assert "No node is connected now." in page(operator)
    assert "/admin/tracker/node/" in page(operator)


def test_each_connected_peer_has_its_figures(operator: Client, make_node: MakeNode, connect: Connect) -> None:
    node, other = make_node("node-a"), make_node("node-b")
    make_node("node-c")
    connect(node)
    connect(other)
    hub.switchboard.peers[node.peer_id].replaced = 3
    shown = page(operator, live="")
    head, first, second = cells(shown)
    assert head[:3] == ["Node", "Model", "Since (UTC)"]
    assert (first[0], first[1], *first[-2:]) == ("node-a", "tiny", "3", "Disconnect…")
    assert (second[0], second[-2]) == ("node-b", "0")
    assert f"/admin/tracker/node/{node.pk}/change/" in shown
    assert "2 connected, of 3 nodes that should be" in re.sub(r"\s+", " ", shown)


def test_figures_are_written_with_their_units(
    operator: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:6379/0"
    figures = report.Figures(4, 1536, 2**20, 0.01234, 0)
    here = report.Row("ab" * 16, "tiny", "wss://a.example.org", "203.0.113.9", 2, 1.8e9, figures)
    elsewhere = report.Row("cd" * 16, "tiny", "wss://b.example.org", "", 1, 1.8e9, None)
    monkeypatch.setattr(report, "rows", lambda: [here, elsewhere])
    _, first, second = cells(page(operator, live=""))
    assert first[:3] == ["abababab", "tiny", "wss://a.example.org"]
    assert first[3:] == ["2027-01-15 08:00:00", "203.0.113.9", "v2", "4", "1.5 KB", "1.0 MB", "12.3 ms", "0", ""]
    assert second[3:] == ["2027-01-15 08:00:00", "–", "v1", "not told yet by its process", ""]


def test_it_refreshes_itself_by_its_live_part(operator: Client, make_node: MakeNode, connect: Connect) -> None:
    connect(make_node("node-a"))
    whole, live = page(operator), page(operator, live="")
    assert 'id="live" data-every-ms="2000"' in whole
    assert "tracker/refresh.js" in whole
    assert "<html" not in live
    assert live.strip() in whole
    assert "no-store" in operator.get("/admin/relay/?live")["Cache-Control"]


def test_it_asks_the_database_as_often_for_many_as_for_one(
    operator: Client, make_node: MakeNode, connect: Connect, django_assert_max_num_queries: Any
) -> None:
    for number in range(5):
        connect(make_node(f"node-{number}"))
    with django_assert_max_num_queries(6):
        page(operator, live="")


def test_a_peer_is_disconnected_by_an_operator_who_says_why(
    operator: Client, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("node-a")
    told: list[Any] = []
    monkeypatch.setattr(auth, "heralds", [lambda *said: told.append(said)])
    path = f"/admin/relay/{node.peer_id}/disconnect/"
    assert "Disconnect node-a?" in operator.get(path).content.decode()
    answer = operator.post(path, {"reason": "it hangs"}, follow=True).content.decode()
    assert "Disconnected: node-a." in answer
    assert told == [(node.peer_id, Code.DRAINING, "an operator of this site closed this connection")]
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target, entry.reason) == ("disconnect", "node-a", "it hangs")
    assert operator.post("/admin/relay/nobody/disconnect/").status_code == 404
