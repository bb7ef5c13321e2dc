"""The way from an empty site to its first answer, as the admin's first page shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tests.tracker.people import client_of
from tracker import joining
from tracker.models import ChatSession, LanguageModel, Node

pytestmark = pytest.mark.django_db


def done() -> list[bool]:
    return [step.is_done for step in joining.steps_left(timezone.now())]


def test_an_empty_site_says_the_next_step_and_the_exact_line(settings: Settings) -> None:
    settings.PUBLIC_URL = "https://mesh.example.org"
    page = client_of("operator").get("/admin/").content.decode()
    assert "/admin/tracker/jointoken/add/" in page
    assert "MESHNET_JOIN_TOKEN=TOKEN python manage.py runnode --tracker https://mesh.example.org --model" in page
    assert done() == [False] * 5


def test_each_step_is_ticked_off_when_it_is_done(
    join_token: Any, make_node: MakeNode, connect: Callable[[Node], None], settings: Settings
) -> None:
    assert done() == [True, False, False, False, False]
    node = make_node("node-a", status=Node.Status.PENDING)
    assert done() == [True, True, False, False, False]
    assert "Approve the node that waits" in client_of("admin").get("/admin/").content.decode()
    Node.objects.update(status=Node.Status.APPROVED)
    connect(node)
    settings.API_KEYS_REQUIRED = False
    assert done() == [True] * 5


def test_nothing_is_left_once_there_was_an_answer(model: LanguageModel) -> None:
    row = {"session_id": "ab" * 16, "completion_id": "c", "model": model, "seed": 1, "state": "done"}
    ChatSession.objects.create(**row, started=timezone.now())
    assert done() == []
    assert "From here to the first answer" not in client_of("superuser").get("/admin/").content.decode()


def test_who_makes_no_keys_is_told_to_ask() -> None:
    assert "/admin/tracker/apikey/add/" not in client_of("operator").get("/admin/").content.decode()
    assert "/admin/tracker/apikey/add/" in client_of("admin").get("/admin/").content.decode()
