"""Secrets that open a door: `<key_id>.<secret>`. The key id finds the row; of the secret only a hash is kept.

A secret has 256 random bits, so a plain SHA-256 is enough at rest: there is nothing to guess that salt or slowness
would protect. The kind in the key id lets an error say "this is an API key" to one who pasted the wrong one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum

MAX_CHARS = 200
_TEXT = re.compile(r"([A-Za-z0-9_-]{4,64})\.([A-Za-z0-9_-]{16,120})")


class Kind(StrEnum):
    JOIN = "join"
    NODE = "node"
    API = "key"


WORDS: dict[str, str] = {Kind.JOIN: "a join token", Kind.NODE: "a node key", Kind.API: "an API key"}


@dataclass(frozen=True, slots=True)
class Credential:
    key_id: str
    secret: str

    @property
    def text(self) -> str:
        return f"{self.key_id}.{self.secret}"

    @property
    def secret_hash(self) -> str:
        return hash_secret(self.secret)

    def __repr__(self) -> str:  # a credential that lands in a log or a traceback must not be one
        return f"Credential({self.key_id!r})"


def mint(kind: Kind) -> Credential:
    return Credential(f"{kind}_{secrets.token_hex(6)}", secrets.token_urlsafe(32))


def parse(text: str) -> Credential | None:
    found = _TEXT.fullmatch(text) if len(text) <= MAX_CHARS else None
    return Credential(found[1], found[2]) if found else None


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def matches(secret: str, secret_hash: str) -> bool:
    return hmac.compare_digest(hash_secret(secret), secret_hash)


def is_node_key(text: str) -> bool:
    """By its looks: whether any node has it is another matter."""
    given = parse(text)
    return given is not None and given.key_id.startswith(f"{Kind.NODE}_")


def describe(text: str) -> str:
    """What a refused credential looks like, in words: "an API key", "a join token", "no credential of this site"."""
    prefix = text.partition("_")[0]
    return WORDS.get(prefix, "no credential of this site")
