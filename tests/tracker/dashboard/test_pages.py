from __future__ import annotations

from datetime import timedelta

import pytest
from django.http import QueryDict
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tests.tracker.people import client_of
from tracker.dashboard.pages import Ask

pytestmark = pytest.mark.django_db


def test_those_who_ask_alike_ask_the_same_whenever_they_do() -> None:
    early, late = (Ask.of(frozenset({"a"}), QueryDict("q=1&live=&q=2"), {"pk": 7}) for _ in range(2))
    assert early == late
    assert hash(early) == hash(late)
    assert (early.param("q"), early.param("live", "not asked"), early.arg("pk")) == ("2", "not asked", 7)
    assert early != Ask.of(frozenset(), QueryDict("q=2"), {"pk": 7})
    assert Ask(timezone.now() - timedelta(days=1), frozenset({"a"}), (("q", "2"),), (("pk", 7),)) == late


def test_live_answers_with_the_part_that_changes_alone(make_node: MakeNode) -> None:
    make_node("alpha")
    viewer = client_of("viewer")
    page, live = viewer.get("/"), viewer.get("/?live")
    assert live.content.strip()
    assert live.content.strip() in page.content
    assert b"<html" not in live.content
    assert b"csrf" not in live.content
    for answer in (page, live):
        assert answer["Cache-Control"] == "no-store"
        assert "default-src 'self'" in answer["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("role", "path", "status"),
    [
        ("anonymous", "/login", 200),
        ("anonymous", "/admin/login/", 200),
        ("anonymous", "/nowhere", 404),
        ("nobody", "/nodes", 403),
        ("superuser", "/admin/", 200),
        ("superuser", "/admin/tracker/jointoken/add/", 200),
    ],
)
def test_every_page_loads_what_this_site_serves_alone(role: str, path: str, status: int, db: None) -> None:
    answer = client_of(role).get(path)
    assert answer.status_code == status
    policy = answer["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script" not in policy, "as by default: none that stands in the page"


@pytest.mark.parametrize("is_htmx", [True, False])
def test_so_does_what_an_action_answers_and_a_forged_form(is_htmx: bool) -> None:
    headers = {"HX-Request": "true"} if is_htmx else {}
    answers = [
        client_of("operator").post("/first-join-token", headers=headers),
        client_of("viewer").post("/first-join-token", headers=headers),
        client_of("operator", checks_csrf=True).post("/first-join-token", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [200, 403, 403]
    assert all("default-src 'self'" in answer["Content-Security-Policy"] for answer in answers)


def test_nothing_can_be_posted_to_a_page() -> None:
    assert client_of("superuser").post("/").status_code == 405


def test_a_page_says_where_its_reader_is_and_who_that_is() -> None:
    page = client_of("viewer").get("/").content.decode()
    assert '<a href="/" aria-current="page">Overview</a>' in page
    assert '<a href="/sessions">Sessions</a>' in page
    assert "<span>one-viewer</span>" in page
    assert "Admin</a>" not in page
    assert "Admin</a>" in client_of("superuser").get("/").content.decode()


def test_who_is_in_no_group_is_told_what_to_do() -> None:
    answer = client_of("nobody").get("/")
    assert answer.status_code == 403
    assert "ask an admin of this site for a group" in answer.content.decode()


def test_an_address_that_leads_nowhere_says_so_in_the_sites_look() -> None:
    answer = client_of("anonymous").get("/no<b>where")
    assert answer.status_code == 404
    page = answer.content.decode()
    assert "There is nothing here" in page
    assert "/no&lt;b&gt;where" in page


def test_a_public_site_shows_strangers_the_overview_and_a_way_in(settings: Settings) -> None:
    stranger = client_of("anonymous")
    assert stranger.get("/").status_code == stranger.get("/?live").status_code == 302
    settings.DASHBOARD_PUBLIC = True
    page = stranger.get("/").content.decode()
    assert '<a href="/login">Log in</a>' in page
    assert 'href="/sessions"' not in page
    assert "htmx" not in page.replace("htmx-config", "")
