"""Signs what nodes may do: one session, one epoch, exactly one route (relay/headers.py has the format).

Nodes verify with the public keys that come with the answers to register and heartbeat, so a new key can be put in
front of TICKET_KEYS while tickets of the old one are still about.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings

from relay.headers import Ticket, encode_ticket
from tracker.models import TicketKey


class BadKey(ValueError):
    """The text is not a raw Ed25519 private key in base64."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    private: Ed25519PrivateKey

    @classmethod
    def from_text(cls, text: str) -> SigningKey:
        try:
            raw = base64.b64decode(text, validate=True)
            return cls(Ed25519PrivateKey.from_private_bytes(raw))
        except (binascii.Error, ValueError):
            raise BadKey("a ticket key is the base64 of 32 bytes, an Ed25519 private key") from None

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @property
    def text(self) -> str:
        return base64.b64encode(self.private.private_bytes_raw()).decode()

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    @property
    def kid(self) -> str:
        return hashlib.sha256(self.public).hexdigest()[:8]


def signing_keys() -> list[SigningKey]:
    """Newest first: TICKET_KEYS, or the database's when there are none."""
    texts = settings.TICKET_KEYS or list(TicketKey.objects.values_list("private", flat=True))
    return [SigningKey.from_text(text) for text in texts]


def public_keys(keys: Sequence[SigningKey] | None = None) -> dict[str, str]:
    """kid -> base64 of the raw public key, as nodes get them."""
    return {key.kid: base64.b64encode(key.public).decode() for key in (signing_keys() if keys is None else keys)}


def sign(
    key: SigningKey,
    *,
    session: str,
    epoch: int,
    fingerprint: str,
    hops: Sequence[tuple[str, int, int]],
    dtype: str,
    max_tokens: int,
    seed: int,
    expires: int,
) -> str:
    """The ticket as it goes into X-Meshnet-Ticket. `hops`: (peer_id, start_layer, end_layer), the head first."""
    route, head = tuple(hops), hops[0][0]
    ticket = Ticket(key.kid, session, epoch, fingerprint, head, route, dtype, max_tokens, seed, expires)
    payload = ticket.payload()
    return encode_ticket(payload, key.private.sign(payload))
