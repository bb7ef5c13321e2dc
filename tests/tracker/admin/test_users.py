"""People and their groups in the admin: whoever gives power has it, and what is done to a login is written down."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from pytest_django import Settings

from tests.tracker.admin.conftest import url
from tests.tracker.people import client_of, person
from tracker.models import AuditEntry

pytestmark = pytest.mark.django_db
PASSWORD = "not-a-common-one-4711"


@pytest.fixture(autouse=True)
def quick_passwords(settings: Settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def change(client: Client, user: User, **fields: Any) -> Any:
    form = {"username": user.username, "is_active": "on", "groups": [group.pk for group in user.groups.all()]}
    return client.post(url(User, user.pk, "change"), form | fields)


def group(name: str) -> Group:
    return Group.objects.get(name=name)


def test_an_admin_adds_somebody_to_a_group() -> None:
    client = client_of("admin")
    form = {"username": "ada", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
    assert client.post(url(User, "add"), form | {"groups": [group("operator").pk]}).status_code == 302
    ada = User.objects.get(username="ada")
    assert [one.name for one in ada.groups.all()] == ["operator"]
    assert (ada.is_superuser, ada.is_staff) == (False, False)
    change(client, ada, groups=[group("viewer").pk])
    assert [one.name for one in ada.groups.all()] == ["viewer"]
    added, changed = AuditEntry.objects.order_by("pk")
    assert (added.actor_name, added.action, added.target) == ("one-admin", "add", "ada")
    assert changed.details == {"groups": [["operator"], ["viewer"]]}


def test_an_admin_makes_nobody_mightier_than_an_admin() -> None:
    client, ada = client_of("admin"), User.objects.create_user("ada")
    mighty = Group.objects.create(name="mighty")
    mighty.permissions.add(Permission.objects.get(codename="change_group"))
    change(client, ada, is_superuser="on", is_staff="on", user_permissions=[Permission.objects.all()[0].pk])
    ada.refresh_from_db()
    assert (ada.is_superuser, ada.is_staff, ada.user_permissions.count()) == (False, False, 0)
    answer = change(client, ada, groups=[mighty.pk])
    assert "is not one of the available choices" in answer.content.decode()
    assert not ada.groups.exists()


def test_who_is_mightier_is_changed_by_no_admin() -> None:
    client = client_of("admin")
    grown, dormant = User.objects.create_user("grown"), User.objects.create_user("dormant", is_active=False)
    grown.user_permissions.add(Permission.objects.get(codename="change_group"))
    mighty = Group.objects.create(name="mighty")
    mighty.permissions.add(Permission.objects.get(codename="add_group"))
    dormant.groups.add(mighty)
    for user in (person("superuser"), grown, dormant):
        for path in (url(User, user.pk, "change"), url(User, user.pk, "password"), url(User, user.pk, "delete")):
            form = {"username": "mine", "password1": PASSWORD, "password2": PASSWORD, "post": "yes"}
            assert client.post(path, form).status_code == 403, path
    chosen = [person("superuser").pk, grown.pk, dormant.pk]
    client.post(url(User), {"action": "delete_selected", "_selected_action": chosen, "post": "yes"})
    assert User.objects.filter(pk__in=chosen, username__in=["one-superuser", "grown", "dormant"]).count() == 3


def test_an_admin_switches_somebody_off_and_on_again() -> None:
    client, ada = client_of("admin"), person("operator")
    for is_active in (False, True):
        assert change(client, ada, is_active="on" if is_active else "").status_code == 302
        ada.refresh_from_db()
        assert ada.is_active == is_active


def test_nobody_deletes_themselves() -> None:
    client = client_of("superuser")
    assert client.post(url(User, person("superuser").pk, "delete"), {"post": "yes"}).status_code == 403


def test_a_superuser_makes_another() -> None:
    client, ada = client_of("superuser"), User.objects.create_user("ada")
    change(client, ada, is_superuser="on")
    assert User.objects.get(username="ada").is_superuser
    assert AuditEntry.objects.get().details == {"is_superuser": [False, True]}


def test_a_new_password_is_written_down_and_not_told() -> None:
    client, ada = client_of("admin"), User.objects.create_user("ada")
    form = {"usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
    assert client.post(url(User, ada.pk, "password"), form).status_code == 302
    ada.refresh_from_db()
    assert ada.check_password(PASSWORD)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target) == ("set password", "ada")
    assert PASSWORD not in str(AuditEntry.objects.values())


def test_ones_own_new_password_is_written_down() -> None:
    user = person("operator")
    user.set_password("a former one")
    user.save()
    client = Client()
    client.force_login(user)
    form = {"old_password": "a former one", "new_password1": PASSWORD, "new_password2": PASSWORD}
    assert client.post("/admin/password_change/", form | {"old_password": "wrong"}).status_code == 200
    assert not AuditEntry.objects.exists()
    assert client.post("/admin/password_change/", form).status_code == 302
    assert AuditEntry.objects.get().action == "set own password"
    assert client.get("/admin/").status_code == 200
