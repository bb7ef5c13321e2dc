"""Everything that people do from a page: who may, that no form of another site can, that it is written down."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from pytest_django import DjangoDbBlocker

from tests.tracker.crowd import crowd
from tests.tracker.dashboard.sitemap import ACTIONS, Place
from tests.tracker.people import ROLES, client_of, person
from tracker.groups import USE_CHAT
from tracker.models import AuditEntry, ChatSession, JoinToken, LanguageModel, Move, Node

pytestmark = pytest.mark.django_db

WHY = "a test of it"
every_action = pytest.mark.parametrize("place", ACTIONS, ids=str)


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """One crowd for all: each test's changes are rolled back before the next."""
    with django_db_blocker.unblock(), transaction.atomic():
        crowd(20, 100, num_samples=1)
        for role in ROLES:
            client_of(role)
        yield
        transaction.set_rollback(True)


def post(client: Client, path: str, **sent: str) -> Any:
    return client.post(path, {"why": WHY, **sent}, headers={"HX-Request": "true"})


def person_may(role: str, permission: str) -> bool:
    return role != "anonymous" and person(role).has_perm(permission)


def rows() -> list[Any]:
    """All that an action may change, as it is now."""
    return [list(of.objects.order_by("pk").values()) for of in (Node, Move, LanguageModel, JoinToken, ChatSession)]


@every_action
@pytest.mark.parametrize("role", ["operator", "admin", "superuser"])
def test_it_is_done_for_those_who_may_and_written_down(site: None, place: Place, role: str) -> None:
    answer = post(client_of(role), place.path(), **place.sent)
    assert answer.status_code == 200, answer.content.decode()[:500]
    assert AuditEntry.objects.order_by("-pk")[0].actor_name == f"one-{role}"


@every_action
def test_it_is_not_done_for_others_nor_by_a_form_of_another_site_nor_by_looking(site: None, place: Place) -> None:
    before, path = rows(), place.path()
    answer = post(client_of("anonymous"), path, **place.sent)
    assert (answer.status_code, answer["HX-Redirect"]) == (401, "/login?next=/")
    for role in ("nobody", "viewer"):
        assert post(client_of(role), path, **place.sent).status_code == 403
    assert post(client_of("superuser", checks_csrf=True), path, **place.sent).status_code == 403
    assert client_of("superuser").get(path).status_code == 405
    assert rows() == before
    assert not AuditEntry.objects.filter(reason=WHY).exists()


@every_action
def test_viewers_look_and_operators_act(place: Place) -> None:
    assert not person("viewer").has_perm(place.view.permission)
    assert person("operator").has_perm(place.view.permission)


@pytest.mark.parametrize("role", ROLES)
def test_a_chat_is_answered_to_those_who_may_alone(site: None, role: str) -> None:
    answer = client_of(role).post("/chat/answer", {}, "application/json")
    assert answer.status_code == (400 if person_may(role, USE_CHAT) else 403)
    assert client_of("superuser", checks_csrf=True).post("/chat/answer", {}, "application/json").status_code == 403


@pytest.mark.parametrize("role", ROLES)
def test_the_way_of_a_chat_is_told_to_who_asked_for_it_alone(site: None, role: str) -> None:
    statuses = {"anonymous": 302, "nobody": 403, "viewer": 403}
    assert client_of(role).get("/chat/chatcmpl-25/route").status_code == statuses.get(role, 404)


@pytest.mark.parametrize("path", ["/login", "/logout", "/admin/login/", "/admin/logout/", "/admin/password_change/"])
def test_forms_that_are_no_actions_are_the_sites_own_too(path: str) -> None:
    assert client_of("superuser", checks_csrf=True).post(path).status_code == 403


def test_only_what_programs_ask_and_what_is_only_read_goes_without_a_token() -> None:
    exempt = [route for route, view in _views() if getattr(view, "csrf_exempt", False)]
    read = [route for route in exempt if not route.startswith(("v1", "api/"))]
    assert read
    client = client_of("superuser", checks_csrf=True)
    for route in read:
        assert client.post("/" + re.sub("<[^>]+>", "0", route)).status_code == 405, route


def _views(patterns: Any = None, prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for pattern in patterns if patterns is not None else get_resolver().url_patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            found += _views(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            found.append((route, pattern.callback))
    return found
