from __future__ import annotations

import base64
import hashlib
from importlib import import_module

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.apps import apps
from pytest_django import Settings

from relay.headers import decode_ticket
from tracker import tickets
from tracker.models import TicketKey
from tracker.tickets import BadKey, SigningKey

HOPS = [("aa" * 16, 0, 6), ("bb" * 16, 6, 12)]


def signed(key: SigningKey) -> str:
    return tickets.sign(
        key,
        session="12" * 16,
        epoch=0,
        fingerprint="ab" * 32,
        hops=HOPS,
        dtype="bfloat16",
        max_tokens=7,
        seed=-5,
        expires=1_900_000_000,
    )


def test_a_ticket_says_what_was_signed() -> None:
    key = SigningKey.generate()
    ticket, _, _ = decode_ticket(signed(key))
    assert ticket.kid == key.kid
    assert ticket.head == HOPS[0][0]
    assert list(ticket.hops) == HOPS
    assert (ticket.session, ticket.epoch, ticket.dtype) == ("12" * 16, 0, "bfloat16")
    assert (ticket.max_tokens, ticket.seed, ticket.expires) == (7, -5, 1_900_000_000)


def test_a_ticket_is_verified_with_the_public_key_that_nodes_get() -> None:
    key = SigningKey.generate()
    ticket, payload, signature = decode_ticket(signed(key))
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(tickets.public_keys([key])[ticket.kid]))
    public.verify(signature, payload)
    with pytest.raises(InvalidSignature):
        public.verify(signature, payload.replace(b'"max_tokens":7', b'"max_tokens":8'))


def test_a_key_id_is_eight_hex_digits_of_the_public_keys_hash() -> None:
    key = SigningKey.generate()
    assert key.kid == hashlib.sha256(key.public).hexdigest()[:8]


def test_a_key_survives_as_text() -> None:
    key = SigningKey.generate()
    assert SigningKey.from_text(key.text).kid == key.kid


@pytest.mark.parametrize("text", ["", "not base64!", base64.b64encode(b"x" * 31).decode(), "é" * 44])
def test_a_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(BadKey, match="32 bytes"):
        SigningKey.from_text(text)


@pytest.mark.django_db
def test_the_first_migration_makes_a_key() -> None:
    TicketKey.objects.all().delete()
    for operation in import_module("tracker.migrations.0002_first_ticket_key").Migration.operations:
        operation.code(apps, None)
    row = TicketKey.objects.get()
    assert SigningKey.from_text(row.private).kid == row.kid
    assert list(tickets.public_keys()) == [row.kid]


@pytest.mark.django_db
def test_keys_of_the_settings_take_the_place_of_the_databases(settings: Settings) -> None:
    new, old = SigningKey.generate(), SigningKey.generate()
    settings.TICKET_KEYS = [new.text, old.text]
    assert [key.kid for key in tickets.signing_keys()] == [new.kid, old.kid]
    assert list(tickets.public_keys()) == [new.kid, old.kid]
