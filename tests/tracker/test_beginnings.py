from __future__ import annotations

import pytest
from django.contrib.auth.models import Group, Permission
from django.core.management import call_command
from django.db.migrations.state import ProjectState
from pytest_django import Settings

from tracker import beginnings, groups, tickets
from tracker.models import TicketKey
from tracker.tickets import SigningKey


def allowed(name: str) -> set[str]:
    return set(Group.objects.get(name=name).permissions.values_list("codename", flat=True))


@pytest.mark.django_db(transaction=True)
def test_a_flushed_site_signs_tickets_and_has_its_groups() -> None:
    old = TicketKey.objects.get().kid
    call_command("flush", interactive=False, verbosity=0)
    assert list(tickets.public_keys()) == [TicketKey.objects.get().kid] != [old]
    assert allowed("viewer") == groups.VIEWER
    assert allowed("operator") == groups.OPERATOR
    assert allowed("admin") >= groups.OPERATOR | groups.OF_USERS


@pytest.mark.django_db
def test_migrating_leaves_what_people_made_of_it() -> None:
    Group.objects.exclude(name="viewer").delete()
    viewer = Group.objects.get()
    viewer.permissions.set(Permission.objects.filter(codename="see_dashboard"))
    kid = TicketKey.objects.get().kid
    call_command("migrate", verbosity=0)
    assert [group.name for group in Group.objects.all()] == ["viewer"]
    assert allowed("viewer") == {"see_dashboard"}
    assert TicketKey.objects.get().kid == kid


@pytest.mark.django_db
def test_no_key_is_made_where_the_settings_bring_one(settings: Settings) -> None:
    settings.TICKET_KEYS = [SigningKey.generate().text]
    TicketKey.objects.all().delete()
    beginnings.make_missing(using="default")
    assert not TicketKey.objects.exists()


@pytest.mark.django_db
def test_nothing_is_made_before_there_are_tables_for_it() -> None:
    TicketKey.objects.all().delete()
    beginnings.make_missing(using="default", apps=ProjectState().apps)
    assert not TicketKey.objects.exists()
