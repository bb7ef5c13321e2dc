"""Who may open and do what in the admin: each page and action, by each group and by nobody; nothing without CSRF."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.test import Client, RequestFactory
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.admin.conftest import url
from tests.tracker.people import ROLES, client_of, person
from tracker import operating
from tracker.models import AuditEntry, ChatSession, JoinToken, Node

pytestmark = pytest.mark.django_db

LET_IN = ("operator", "admin", "superuser")
# v: sees the list and the rows, a: adds, c: changes, d: deletes
PAGES = {
    "apikey": {"operator": "v", "admin": "vacd", "superuser": "vacd"},
    "auditentry": {"operator": "v", "admin": "v", "superuser": "v"},
    "chatsession": {"operator": "v", "admin": "vd", "superuser": "vd"},
    "contribution": {"operator": "v", "admin": "vd", "superuser": "vd"},
    "group": {"operator": "", "admin": "v", "superuser": "vacd"},
    "jointoken": {"operator": "vac", "admin": "vacd", "superuser": "vacd"},
    "languagemodel": {"operator": "vac", "admin": "vacd", "superuser": "vacd"},
    "move": {"operator": "v", "admin": "vd", "superuser": "vd"},
    "node": {"operator": "vc", "admin": "vcd", "superuser": "vcd"},
    "refusedfingerprint": {"operator": "vacd", "admin": "vacd", "superuser": "vacd"},
    "usage": {"operator": "v", "admin": "vd", "superuser": "vd"},
    "user": {"operator": "", "admin": "vacd", "superuser": "vacd"},
}
OF_NODES = frozenset({*operating.ACTIONS, "ban"})
ACTIONS: dict[str, dict[str, frozenset[str]]] = {  # beside delete_selected, which whoever may delete has
    "apikey": dict.fromkeys(("admin", "superuser"), frozenset({"revoke"})),
    "chatsession": dict.fromkeys(LET_IN, frozenset({"cancel"})),
    "jointoken": dict.fromkeys(LET_IN, frozenset({"revoke"})),
    "languagemodel": dict.fromkeys(LET_IN, frozenset({"refuse", "allow"})),
    "node": dict.fromkeys(LET_IN, OF_NODES),
}
TABLES: dict[str, Any] = {str(model._meta.model_name): model for model in admin.site._registry}


@pytest.fixture
def everybody(rows: None) -> None:
    for role in ROLES[1:]:
        person(role)


def row_of(table: Any) -> Any:
    """Somebody else than whoever looks, where the rows are people."""
    return User.objects.get(username="one-nobody") if table is User else table.objects.first()


def statuses(client: Client, table: Any) -> dict[str, int]:
    pk = row_of(table).pk
    pages = {
        "v": [url(table), url(table) + "?q=a", url(table, pk, "change"), url(table, pk, "history")],
        "a": [url(table, "add")],
        "d": [url(table, pk, "delete")],
    }
    found = {}
    for what, paths in pages.items():
        (found[what],) = {client.get(path).status_code for path in paths}
    return found


def test_each_table_is_in_this_list() -> None:
    assert set(TABLES) == set(PAGES)


@pytest.mark.parametrize("role", ROLES)
def test_a_page_opens_to_who_may_and_to_nobody_else(everybody: None, role: str) -> None:
    client = client_of(role)
    for name, table in TABLES.items():
        may = PAGES[name].get(role)
        wanted = {what: 302 if may is None else 200 if what in may else 403 for what in "vad"}
        assert statuses(client, table) == wanted, name
    for path, wants in (("/admin/", 200), ("/admin/relay/", 200), ("/admin/relay/nobody/disconnect/", 404)):
        assert client.get(path).status_code == (wants if role in LET_IN else 302), path


@pytest.mark.parametrize("role", ROLES)
def test_a_row_is_changed_by_who_may_and_by_nobody_else(everybody: None, role: str) -> None:
    client = client_of(role)
    for name, table in TABLES.items():
        may = PAGES[name].get(role)
        status = client.post(url(table, row_of(table).pk, "change"), {"name": ""}).status_code
        if may is None:
            assert status == 302, name
        else:
            assert (status == 403) is ("c" not in may), name
    if role not in LET_IN:
        assert [entry.action for entry in AuditEntry.objects.all()] == ["pause"]


@pytest.mark.parametrize("role", LET_IN)
def test_an_action_is_offered_to_who_may(everybody: None, role: str, rf: RequestFactory) -> None:
    request = rf.get("/")
    request.user = person(role)
    for name, table in TABLES.items():
        wanted = set(ACTIONS.get(name, {}).get(role, ()))
        if "d" in PAGES[name][role]:
            wanted.add("delete_selected")
        assert set(admin.site._registry[table].get_actions(request)) == wanted, name


@pytest.mark.parametrize("role", ["anonymous", "nobody", "viewer"])
def test_who_isnt_let_in_acts_on_nothing(everybody: None, role: str) -> None:
    client = client_of(role)
    num_entries = AuditEntry.objects.count()
    for name, by_role in ACTIONS.items():
        table = TABLES[name]
        for action in {*by_role["superuser"], "delete_selected"}:
            form = {"action": action, "_selected_action": [row_of(table).pk], "post": "yes", "reason": "x"}
            assert client.post(url(table), form).status_code == 302
            assert table.objects.exists(), action
    assert AuditEntry.objects.count() == num_entries


def test_an_operator_revokes_no_api_key_and_deletes_no_node(everybody: None) -> None:
    client, num_entries = client_of("operator"), AuditEntry.objects.count()
    for name, action in (("apikey", "revoke"), ("node", "delete_selected"), ("chatsession", "delete_selected")):
        table = TABLES[name]
        client.post(url(table), {"action": action, "_selected_action": [row_of(table).pk], "post": "yes"})
        assert table.objects.exists()
    assert not TABLES["apikey"].objects.get().revoked
    assert AuditEntry.objects.count() == num_entries


def test_somebody_with_the_staff_flag_and_no_group_is_let_in_and_sees_no_table(everybody: None) -> None:
    User.objects.create_user("staff", is_staff=True)
    client = client_of("nobody", "staff")
    assert "You don’t have permission to view or edit anything" in client.get("/admin/").content.decode()
    for path in (url(Node), "/admin/relay/"):
        assert client.get(path).status_code == 403


def test_an_operator_logs_in_at_the_admin_without_the_staff_flag(everybody: None, settings: Settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    for role, is_let_in in (("operator", True), ("viewer", False)):
        user = person(role)
        user.set_password("a fine password")
        user.save()
        form = {"username": user.username, "password": "a fine password"}
        assert (Client().post("/admin/login/?next=/admin/", form).status_code == 302) is is_let_in


def test_a_user_that_is_switched_off_is_out_at_once(everybody: None) -> None:
    client = client_of("operator")
    User.objects.filter(username="one-operator").update(is_active=False)
    assert client.get(url(Node)).status_code == 302


def test_nothing_is_done_without_the_token_against_forged_requests(everybody: None) -> None:
    client = client_of("superuser", checks_csrf=True)
    before = {name: list(table.objects.values()) for name, table in TABLES.items() if name != "user"}
    peer_id = Node.objects.get().peer_id
    paths = ["/admin/password_change/", f"/admin/relay/{peer_id}/disconnect/", "/admin/login/", "/admin/logout/"]
    for table in TABLES.values():
        pk = row_of(table).pk
        paths += [url(table), url(table, "add"), url(table, pk, "change"), url(table, pk, "delete")]
    for path in paths:
        assert client.post(path, {"action": "revoke", "_selected_action": "1", "post": "yes"}).status_code == 403, path
    assert {name: list(table.objects.values()) for name, table in TABLES.items() if name != "user"} == before


def test_markup_in_what_people_write_stays_text(everybody: None) -> None:
    text = "<script>alert(1)</script>"
    JoinToken.objects.update(label=text)
    Node.objects.update(ban_reason=text, banned_until=timezone.now().replace(year=2999), breaker_reason=text)
    ChatSession.objects.update(user=text, metadata={"a": text}, error_message=text)
    AuditEntry.objects.update(target=text, reason=text, details={"a": text}, actor_name=text)
    TABLES["languagemodel"].objects.update(is_refused=True, refusal_reason=text)
    TABLES["refusedfingerprint"].objects.update(reason=text)
    Group.objects.create(name=text)
    client = client_of("superuser")
    for table in TABLES.values():
        for path in (url(table), url(table, row_of(table).pk, "change")):
            page = client.get(path).content.decode()
            assert text not in page, path
