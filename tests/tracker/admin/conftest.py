"""Rows for the admin's tables, and its URLs."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tracker import audit
from tracker.models import (
    ApiKey,
    ChatSession,
    Contribution,
    LanguageModel,
    Move,
    RefusedFingerprint,
    SessionHop,
    Usage,
)

OURS = [model for model in admin.site._registry if model._meta.app_label == "tracker"]


def contributed(node_name: str, owner: str, tokens: int, **row: Any) -> None:
    done = {"sessions": 1, "tokens": tokens, "token_layers": 600 * tokens}
    day = {"day": timezone.now().date(), "model_name": "tiny"}
    Contribution.objects.create(node_name=node_name, owner_label=owner, **(day | done | row))


def url(model: Any, *parts: Any) -> str:
    return "/".join([f"/admin/{model._meta.app_label}", model._meta.model_name, *map(str, parts), ""])


@pytest.fixture
def rows(make_node: MakeNode, model: LanguageModel, api_key: Any, join_token: Any) -> None:
    """One row of each kind."""
    node = make_node("node-a", 6, 12, endpoint="http://10.0.0.1:7002", endpoint_error="10.0.0.1 is private")
    session = ChatSession.objects.create(
        session_id="0123456789abcdef" * 2, completion_id="chatcmpl-1", model=model, seed=1, started=timezone.now()
    )
    SessionHop.objects.create(session=session, position=0, node=node, node_name="node-a", start_layer=6, end_layer=12)
    contributed("node-a", "Ada", 10)
    Usage.objects.create(api_key=ApiKey.objects.get(), day=timezone.now().date(), model_name="node-a", requests=3)
    layers = {"from_start": 6, "from_end": 12, "to_start": 0, "to_end": 6}
    Move.objects.create(model=model, node=node, **layers, gain=1.5, reason="layers 0–5 have no node")
    RefusedFingerprint.objects.create(fingerprint="cd" * 32, reason="a copy of node-x")
    audit.record(None, "pause", node, "it is slow")
