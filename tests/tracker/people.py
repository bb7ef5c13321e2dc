"""Somebody of each group, logged in: whoever may or may not see a page of the site or act on it."""

from __future__ import annotations

from django.contrib.auth.models import Group, User
from django.test import Client

GROUPS = ("viewer", "operator", "admin")
ROLES = ("anonymous", "nobody", *GROUPS, "superuser")  # nobody: has a login and no group


def person(role: str, name: str = "") -> User:
    """Made once for each role."""
    name = name or f"one-{role}"
    found = User.objects.filter(username=name).first()
    if found:
        return found
    if role == "superuser":
        return User.objects.create_superuser(name)
    made = User.objects.create_user(name)
    if role in GROUPS:
        made.groups.add(Group.objects.get(name=role))
    return made


def client_of(role: str, name: str = "", *, checks_csrf: bool = False) -> Client:
    client = Client(enforce_csrf_checks=checks_csrf)
    if role != "anonymous":
        client.force_login(person(role, name))
    return client
