"""Rows that tests of the tracker start from."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from relay.auth import authenticator
from relay.throttle import Throttle
from tests.tracker.fakes import PeerSocket
from tracker import credentials, gate
from tracker.credentials import Credential, Kind
from tracker.models import ApiKey, JoinToken, LanguageModel, Node, Shard, TicketKey
from tracker.tickets import SigningKey

FINGERPRINT = "ab" * 32
MakeNode = Callable[..., Node]


@pytest.fixture(autouse=True)
def patient_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test pays for the bad credentials of another."""
    monkeypatch.setattr(authenticator, "throttle", Throttle(time.monotonic))
    monkeypatch.setattr(gate, "_known", {})


@pytest.fixture(autouse=True)
def nobody_is_waited_for(settings: Settings) -> None:
    """A chat that has lost its head ends at once where nobody goes on with it."""
    settings.FAILOVER_WAIT_S = 0


@pytest.fixture
def ticket_key(db: None) -> SigningKey:
    """The site's, made by its first migrate."""
    return SigningKey.from_text(TicketKey.objects.get().private)


@pytest.fixture
def model(db: None) -> LanguageModel:
    return LanguageModel.objects.create(
        name="tiny", fingerprint=FINGERPRINT, num_layers=12, hidden_size=64, context_length=256
    )


@pytest.fixture
def make_node(model: LanguageModel) -> MakeNode:
    """A node that is heard of; whether it is online then depends on its socket or its endpoint."""

    def make(name: str, start_layer: int = 0, end_layer: int = 12, **fields: Any) -> Node:
        key = credentials.mint(Kind.NODE)
        now = timezone.now()
        row: dict[str, Any] = {
            "name": name,
            "model": model,
            "peer_id": secrets.token_hex(16),
            "key_id": key.key_id,
            "secret_hash": key.secret_hash,
            "status": Node.Status.APPROVED,
            "is_registered": True,
            "last_seen": now,
            "lease_until": now + timedelta(seconds=60),
            "model_facts": {"fingerprint": FINGERPRINT, "num_layers": 12, "hidden_size": 64, "context_length": 256},
        }
        node = Node.objects.create(**(row | fields))
        node.key = key  # type: ignore[attr-defined]
        Shard.objects.create(node=node, start_layer=start_layer, end_layer=end_layer)
        return node

    return make


@pytest.fixture
def connect() -> Iterator[Callable[[Node], None]]:
    """Gives a node a socket on the relay, for tests that only look at its presence."""
    with ExitStack() as sockets:

        async def attach(node: Node) -> PeerSocket:
            return PeerSocket(node.peer_id, "tiny")

        def make(node: Node) -> None:
            sockets.callback(async_to_sync(attach)(node).leave)

        yield make


@pytest.fixture
def join_token(db: None) -> tuple[JoinToken, Credential]:
    token = JoinToken(label="test")
    credential = token.give_secret()
    token.save()
    return token, credential


@pytest.fixture
def api_key(db: None) -> Credential:
    key = ApiKey(label="test")
    credential = key.give_secret()
    key.save()
    return credential


@pytest.fixture
def operator(client: Client, django_user_model: Any) -> Client:
    client.force_login(django_user_model.objects.create_superuser("operator"))
    return client
