from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import Client
from django.urls import include, path
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tests.tracker.people import client_of
from tracker.dashboard.actions import Done, Refused, action
from tracker.groups import OPERATE
from tracker.models import AuditEntry, Node

pytestmark = pytest.mark.django_db


@action(OPERATE)
def rename(request: HttpRequest, why: str, name: str) -> Done:
    if name == "never":
        raise Refused("<never> isn't a name: take another.")
    node = Node.objects.get()
    return Done(f"{node} is {name} now.", "rename", [node], {"to": name})


@action(OPERATE)
def token(request: HttpRequest, why: str) -> Done:
    return Done("Copy it.", secret="join_<1>")


urlpatterns = [
    path("rename/<str:name>", rename),
    path("token", token),
    path("", include("meshweb.urls")),
]


@pytest.fixture(autouse=True)
def urls(settings: Settings, make_node: MakeNode) -> Iterator[None]:
    settings.ROOT_URLCONF = __name__
    make_node("alpha")
    return iter(())


def post(client: Client, path: str, *, htmx: bool = True, **data: str) -> Any:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/?q=1"} if htmx else {}
    return client.post(path, data, headers=headers)


def test_what_was_done_is_said_and_written_down_with_its_reason() -> None:
    answer = post(client_of("operator"), "/rename/beta", why="  tidying ")
    assert answer.content.decode().strip() == '<div class="message">alpha is beta now.</div>'
    entry = AuditEntry.objects.get()
    assert (entry.actor_name, entry.action, entry.target, entry.reason) == (
        "one-operator",
        "rename",
        "alpha",
        "tidying",
    )
    assert entry.details == {"to": "beta"}


def test_a_reason_is_one_line_wherever_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "tracker.audit"):
        post(client_of("operator"), "/rename/beta", why="slow\r\n2026-01-01 INFO admin: approve\x1b[31m ")
    assert AuditEntry.objects.get().reason == "slow 2026-01-01 INFO admin: approve [31m"
    assert caplog.messages == ["one-operator: rename node alpha (slow 2026-01-01 INFO admin: approve [31m)"]


def test_what_cannot_be_done_is_a_409_with_the_reason_and_leaves_no_trace() -> None:
    answer = post(client_of("operator"), "/rename/never")
    assert answer.status_code == 409
    assert '<div class="message error">&lt;never&gt; isn&#x27;t a name' in answer.content.decode()
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("group", ["nobody", "viewer"])
@pytest.mark.parametrize("htmx", [True, False])
def test_who_may_not_is_told_so(group: str, htmx: bool) -> None:
    answer = post(client_of(group), "/rename/beta", htmx=htmx)
    assert answer.status_code == 403
    assert "You may not do this" in answer.content.decode()
    assert not AuditEntry.objects.exists()


def test_who_is_not_logged_in_comes_back_to_the_page_after_that() -> None:
    answer = post(client_of("anonymous"), "/rename/beta")
    assert (answer.status_code, answer["HX-Redirect"]) == (401, "/login?next=/%3Fq%3D1")
    answer = post(client_of("anonymous"), "/rename/beta", htmx=False)
    assert (answer.status_code, answer["Location"]) == (302, "/login?next=/")


def test_without_htmx_the_page_is_shown_again_with_the_words() -> None:
    operator = client_of("operator")
    answer = operator.post("/rename/beta", headers={"Referer": "http://testserver/?q=1"}, follow=True)
    assert answer.redirect_chain == [("/?q=1", 302)]
    assert '<li class="message success">alpha is beta now.</li>' in answer.content.decode()
    answer = operator.post("/rename/beta", headers={"Referer": "http://elsewhere.example/evil"})
    assert answer["Location"] == "/"


@pytest.mark.parametrize(
    "page",
    ["http://testserver//evil.example/x", "http://testserver/\\evil.example", "http://testserver///evil.example"],
)
def test_nobody_is_led_to_another_site(page: str) -> None:
    answer = client_of("operator").post("/rename/beta", headers={"Referer": page})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    answer = client_of("anonymous").post("/rename/beta", headers={"HX-Request": "true", "HX-Current-URL": page})
    assert answer["HX-Redirect"] == "/login?next=/"


@pytest.mark.parametrize("htmx", [True, False])
def test_a_secret_is_in_no_cache_and_no_message(htmx: bool) -> None:
    answer = post(client_of("operator"), "/token", htmx=htmx)
    assert "join_&lt;1&gt;</pre>" in answer.content.decode()
    assert answer["Cache-Control"] == "no-store"


def test_another_sites_form_does_nothing() -> None:
    forger = Client(enforce_csrf_checks=True)
    forger.cookies = client_of("operator").cookies
    answer = post(forger, "/rename/beta")
    assert answer.status_code == 403
    assert "This was not sent from a page of this site" in answer.content.decode()
    assert not AuditEntry.objects.exists()


def test_nothing_is_done_by_looking() -> None:
    assert client_of("operator").get("/rename/beta").status_code == 405
