"""Every button works without JavaScript, too: it leads to a page that asks once more and carries the token."""

from __future__ import annotations

import re
from html import unescape

import pytest

from tests.tracker.conftest import MakeNode
from tests.tracker.people import client_of
from tracker.models import AuditEntry, Node

pytestmark = pytest.mark.django_db


def hidden(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))


def test_what_was_asked_for_is_asked_once_more_and_done_by_the_form_there(make_node: MakeNode) -> None:
    node = make_node("alpha")
    operator, back = client_of("operator", checks_csrf=True), f"/nodes/{node.pk}"
    asked = {"to": f"{back}/pause", "why": 'a "new" disk'}
    page = operator.get("/confirm", asked, headers={"Referer": f"http://testserver{back}"}).content.decode()
    assert "Pause: alpha?" in page
    assert f'action="{back}/pause"' in page
    assert 'value="a &quot;new&quot; disk"' in page
    assert Node.objects.get().duty == "works", "looking does nothing"
    answer = operator.post(asked["to"], hidden(page) | {"why": asked["why"]})
    assert (answer.status_code, answer["Location"]) == (302, back)
    assert Node.objects.get().duty == "paused"
    assert AuditEntry.objects.get().reason == asked["why"]


def test_what_else_the_action_needs_is_kept(make_node: MakeNode) -> None:
    node = make_node("alpha")
    operator = client_of("operator")
    page = operator.get("/confirm", {"to": f"/nodes/{node.pk}/ban", "lasts": "1h", "why": "it errs"}).content.decode()
    assert hidden(page)["lasts"] == "1h"
    assert "Ban alpha? It is disconnected at once." in unescape(page)


@pytest.mark.parametrize("to", ["", "/", "/nope", "https://evil.example/", "//evil.example/", "/nodes/1/dance"])
def test_only_what_can_be_done_here_is_asked(to: str, make_node: MakeNode) -> None:
    make_node("alpha")
    assert client_of("operator").get("/confirm", {"to": to}).status_code == 404


def test_it_asks_only_those_who_may(make_node: MakeNode) -> None:
    to = {"to": f"/nodes/{make_node('alpha').pk}/pause"}
    assert client_of("anonymous").get("/confirm", to)["Location"].startswith("/login?next=/confirm")
    assert client_of("viewer").get("/confirm", to).status_code == 403
    assert client_of("operator").post("/confirm", to).status_code == 405


def test_no_form_of_a_live_part_is_dead_without_javascript_and_none_is_sent_by_enter(make_node: MakeNode) -> None:
    node = make_node("alpha")
    page = client_of("operator").get(f"/nodes/{node.pk}?live").content.decode()
    forms = re.findall(r"<form .*?</form>", page, re.DOTALL)
    assert len(forms) == 2
    for form in forms:
        assert form.startswith('<form method="get" action="/confirm"')
        assert re.search(r"<button[^>]*>", form)[0] == "<button disabled hidden>", "Enter takes the first"  # type: ignore[index]
    assert re.findall(r'name="to" value="([^"]+)"', page)[-1] == f"/nodes/{node.pk}/ban"
    assert "required" in forms[-1], "the reason of a ban is asked for before the question"
