"""A caller and a peer written from the decision record of relay hops alone: websocket-client, json and base64.

Credentials and tickets are opaque strings here. Nothing of Meshnet is imported, and nothing may be: these two stand
for programs of other people.
"""

from __future__ import annotations

import base64
import json

from tests.lab import ends
from tests.lab.ends import Envelope


class Record:
    """Version 1: JSON text, bodies in base64, or as text where they are text."""

    subprotocols: list[str] = []

    def greeting(self, peer_id: str) -> str:
        return json.dumps({"type": "register", "peer_id": peer_id})

    def encode(self, envelope: Envelope, body: bytes | str) -> str:
        if isinstance(body, str):
            return json.dumps(envelope | {"body": body})
        return json.dumps(envelope | {"body_base64": base64.b64encode(body).decode()})

    def decode(self, message: bytes) -> tuple[Envelope, bytes]:
        envelope: Envelope = json.loads(message)
        key = "body" if {"body", "body_base64"} & set(envelope) else "chunk"
        if f"{key}_base64" in envelope:
            return envelope, base64.b64decode(envelope[f"{key}_base64"])
        return envelope, str(envelope.get(key, "")).encode()

    def reply(self, envelope: Envelope) -> None:
        """The record has no pings of its own."""


class Caller(ends.Caller):
    language = Record()


class Peer(ends.Peer):
    language = Record()
