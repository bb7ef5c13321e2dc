"""Every page of the dashboard: who sees it, what it costs to show, and what it makes of names with markup in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from django.contrib import admin
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import reverse
from pytest_django import DjangoDbBlocker

from tests.tracker.crowd import Crowd, crowd
from tests.tracker.dashboard import sitemap
from tests.tracker.dashboard.markup import SPICE, Read, intruders
from tests.tracker.dashboard.sitemap import PAGES, Place
from tests.tracker.people import ROLES, client_of

pytestmark = pytest.mark.django_db

FEW, MANY = (20, 100), (200, 10_000)  # nodes, sessions
MAX_QUERIES = 30
ODD = (SPICE, "-1", "9" * 30, "\0é%")  # typed into every field of a page
OPENED = {"overview"}  # by DASHBOARD_PUBLIC
JSON = ("/sessions.json", "/sessions/chatcmpl-7.json", "/sessions/chatcmpl-7/0.json")
LIVE_TO = ("anonymous", "nobody", "viewer", "operator")  # who asks for the part that changes, too
LEAST = {"chat": "operator"}  # who sees it; of the others a viewer


def may(role: str, place: Place) -> bool:
    """As the site promises it."""
    by_rank = ["viewer", "operator", "admin", "superuser"]
    return role in by_rank[by_rank.index(LEAST.get(place.name, "viewer")) :]


@dataclass
class Shown:
    """What a page cost, and what came."""

    queries: dict[str, int] = field(default_factory=dict)  # by page
    pages: dict[str, str] = field(default_factory=dict)
    live: dict[str, str] = field(default_factory=dict)
    typed: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)  # with something odd in each field
    public: dict[str, tuple[int, str]] = field(default_factory=dict)  # to strangers, of a site that is open to them
    statuses: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # by page and role; whole and live
    json: dict[tuple[str, str], int] = field(default_factory=dict)  # statuses of what programs read of a page, by role
    admin: dict[str, tuple[int, str]] = field(default_factory=dict)  # by path, to who may all
    texts: set[str] = field(default_factory=set)  # that a stranger may not read


def cost(made: Crowd) -> Shown:
    """Of each page, to somebody who may see all."""
    shown, client = Shown(), client_of("admin")
    with made.connected():
        for place in PAGES:
            path, name = place.path(), str(place)
            client.get(path)  # what is kept from one look to the next
            with CaptureQueriesContext(connection) as asked:
                shown.pages[name] = client.get(path).content.decode()
            shown.queries[name] = len(asked)
    return shown


def look(made: Crowd) -> Shown:
    """What everybody gets."""
    shown, clients = cost(made), {role: client_of(role) for role in ROLES}
    shown.texts = secrets_of(made)
    with made.connected():
        for place in PAGES:
            path, name = place.path(), str(place)
            for text in ODD:
                fields = dict.fromkeys({"q", "page", *Read(shown.pages[name]).fields}, text)
                answer = clients["admin"].get(path, fields)
                shown.typed[name, text] = answer.status_code, answer.content.decode()
            shown.live[name] = clients["admin"].get(path, {"live": ""}).content.decode()
            for role, client in clients.items():
                whole = client.get(path).status_code
                live = client.get(path, {"live": ""}).status_code if role in LIVE_TO else whole
                shown.statuses[name, role] = whole, live
            with override_settings(DASHBOARD_PUBLIC=True):
                for query in ("", "?live"):
                    answer = clients["anonymous"].get(path + query)
                    shown.public[name + query] = answer.status_code, answer.content.decode()
        for path in of_admin():
            answer = clients["superuser"].get(path)
            shown.admin[path] = answer.status_code, answer.content.decode()
        for path in JSON:
            shown.json |= {(path, role): client.get(path).status_code for role, client in clients.items()}
    return shown


def of_admin() -> list[str]:
    """Each list of the admin, and of each the page of its first row; and the pages that are ours alone."""
    names = [(model, f"admin:{model._meta.app_label}_{model._meta.model_name}") for model in admin.site._registry]
    lists = [reverse(f"{name}_changelist") for _, name in names]
    firsts = [(name, model._default_manager.order_by("pk").first()) for model, name in names]
    rows = [reverse(f"{name}_change", args=[row.pk]) for name, row in firsts if row]
    return [reverse("admin:index"), reverse("admin:relay"), *lists, *rows]


def secrets_of(made: Crowd) -> set[str]:
    """Ids, addresses, owners and names of nodes, texts that came with them."""
    nodes = {text for node in made.nodes for text in (node.peer_id, node.name, node.address or "", node.endpoint)}
    sessions = {text for one in made.sessions for text in (one.completion_id, one.session_id, one.short_id)}
    return {text for text in nodes | sessions if text} | {"owner 1", "192.0.2.", "no path works"}


def looked(at: Callable[[Crowd], Shown], size: tuple[int, int], blocker: DjangoDbBlocker) -> Shown:
    """At a crowd that is gone afterwards."""
    with blocker.unblock(), transaction.atomic():
        try:
            return at(crowd(*size, num_samples=10, spice=SPICE))
        finally:
            transaction.set_rollback(True)


@pytest.fixture(scope="module")
def few(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Shown:
    return looked(look, FEW, django_db_blocker)


@pytest.fixture(scope="module")
def many(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Shown:
    return looked(cost, MANY, django_db_blocker)


every_page = pytest.mark.parametrize("place", PAGES, ids=str)


def test_every_url_is_a_page_an_action_or_has_a_name_here() -> None:
    assert sitemap.REST <= sitemap.OTHERS


@every_page
@pytest.mark.parametrize("role", ROLES)
def test_a_page_is_seen_by_those_who_may_alone(few: Shown, place: Place, role: str) -> None:
    told = {"anonymous": 302, **{other: 200 if may(other, place) else 403 for other in ROLES if other != "anonymous"}}
    assert few.statuses[str(place), role] == (told[role], told[role])


@pytest.mark.parametrize("path", JSON)
def test_what_programs_read_of_a_page_is_for_the_same_people(few: Shown, path: str) -> None:
    told = {role: few.json[path, role] for role in ROLES}
    assert told == {"anonymous": 302, "nobody": 403, **dict.fromkeys(("viewer", "operator", "admin", "superuser"), 200)}


@every_page
@pytest.mark.parametrize("query", ["", "?live"])
def test_a_public_site_opens_models_and_counts_to_strangers_and_nothing_else(
    few: Shown, place: Place, query: str
) -> None:
    status, page = few.public[str(place) + query]
    assert status == (200 if place.name in OPENED else 302)
    text = Read(page).text + page
    assert {secret for secret in few.texts if secret in text} == set()


@every_page
def test_names_with_markup_in_them_are_text(few: Shown, place: Place) -> None:
    assert intruders(few.pages[str(place)]) == set()
    assert intruders(few.live[str(place)]) == set()


@every_page
@pytest.mark.parametrize("text", ODD)
def test_whatever_is_typed_is_text_and_breaks_nothing(few: Shown, place: Place, text: str) -> None:
    status, page = few.typed[str(place), text]
    assert status in (200, 404)
    assert intruders(page) == set()


def test_names_with_markup_in_them_are_text_in_the_admin_too(few: Shown) -> None:
    assert {path: status for path, (status, _) in few.admin.items() if status != 200} == {}
    assert {path: found for path, (_, page) in few.admin.items() if (found := intruders(page))} == {}
    assert SPICE in Read(few.admin[reverse("admin:tracker_node_changelist")][1]).text


def test_the_names_are_there(few: Shown) -> None:
    assert SPICE in Read(few.pages["overview"]).text
    assert intruders(f'<p title="{SPICE}">') == {"x-evil", "onload"}


@every_page
def test_the_part_that_changes_is_that_of_the_page_and_nobodys_own(few: Shown, place: Place) -> None:
    live = few.live[str(place)]
    assert live.strip()
    for never in ("<html", "csrfmiddlewaretoken", "one-admin"):
        assert never not in live


@every_page
def test_a_page_asks_the_database_as_often_for_many_as_for_few(few: Shown, many: Shown, place: Place) -> None:
    assert many.queries[str(place)] == few.queries[str(place)]
    assert many.queries[str(place)] <= MAX_QUERIES


@every_page
def test_a_page_about_many_is_not_endless(many: Shown, place: Place) -> None:
    assert len(many.pages[str(place)]) < 400_000
