"""Somebody of each group, logged in: whoever may or may not see a page of the site or act on it."""

from __future__ import annotations

from django.contrib.auth.models import Group, Permission, User
from django.test import Client

from tracker import groups

GROUPS = ("viewer", "operator", "admin")
ROLES = ("anonymous", "nobody", *GROUPS, "superuser")  # nobody: has a login and no group


def person(role: str, name: str = "") -> User:
    """Made once for each role. Tests that flush the database take the groups away; they are made again."""
    name = name or f"one-{role}"
    found = User.objects.filter(username=name).first()
    if found:
        return found
    if role == "superuser":
        return User.objects.create_superuser(name)
    made = User.objects.create_user(name)
    if role in GROUPS:
        if not Group.objects.filter(name=role).exists():
            groups.make(Group.objects, Permission.objects)
        made.groups.add(Group.objects.get(name=role))
    return made


def client_of(role: str, name: str = "", *, checks_csrf: bool = False) -> Client:
    client = Client(enforce_csrf_checks=checks_csrf)
    if role != "anonymous":
        client.force_login(person(role, name))
    return client
