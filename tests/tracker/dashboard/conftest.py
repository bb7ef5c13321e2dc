"""People of each group, logged in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client

from tracker import groups

ClientOf = Callable[[str], Client]


@pytest.fixture
def client_of(db: None, django_user_model: Any) -> ClientOf:
    """By the group: "" is nobody, "none" somebody without a group, "superuser" one who may all."""
    groups.make(Group.objects, Permission.objects)  # tests that flush the database take the migration's away

    def made(group: str) -> Client:
        client = Client()
        if not group:
            return client
        user = django_user_model.objects.create(username=group, is_superuser=group == "superuser")
        if group not in ("none", "superuser"):
            user.groups.add(Group.objects.get(name=group))
        client.force_login(user)
        return client

    return made
