"""A chat that another head has begun: what it has told so far, and the seam between its text and what is told next.

The ids are decoded afresh, through the same detokenizer and stop matcher, so that half a character or the beginning of
a stop string is held as it was there. What goes out is only what lies beyond the text that the client has.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PARAM = "meshnet.resume"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ResumeError(ValueError):
    """What is to be continued breaks a rule: the asker's to mend."""


class ResumeMismatch(Exception):
    """What the client has isn't the beginning of what this node makes of the same tokens."""


@dataclass(frozen=True, slots=True)
class Resume:
    """What the client has of a chat. The text itself stays with the tracker: its length and SHA-256 tell it apart."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]  # of the answer
    sent_chars: int
    sent_sha256: str  # of those characters in UTF-8

    @classmethod
    def read(cls, fields: Any) -> Resume:
        """Raises ResumeError."""
        if not isinstance(fields, dict):
            raise _bad("must be an object")
        sent_chars, sha256 = fields.get("sent_chars"), fields.get("sent_sha256")
        if type(sent_chars) is not int or sent_chars < 0:
            raise _bad("sent_chars must be a whole number, 0 or more")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise _bad("sent_sha256 must be 64 hexadecimal digits")
        prompt_ids, ids = (_ids(fields.get(name), name) for name in ("prompt_ids", "ids"))
        return cls(prompt_ids, ids, sent_chars, sha256)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ResumeError: an id that is no token would fail in the engine."""
        strange = [token_id for token_id in (*self.prompt_ids, *self.ids) if token_id >= vocab_size]
        if strange:
            raise _bad(f"names token {strange[0]}; the model's are 0 to {vocab_size - 1}")


@dataclass(slots=True)
class Replay:
    """What it took to bring the route to where the other head was; the tracker keeps it with the session."""

    epoch: int
    num_tokens: int
    compute_ms: float | None = None

    def end(self, hop_table: Sequence[Mapping[str, Any]]) -> None:
        """The first new token is there; later ones change nothing."""
        if self.compute_ms is None:
            self.compute_ms = sum(float(hop["compute_ms"]) for hop in hop_table)

    def as_dict(self) -> dict[str, Any]:
        told = {"epoch": self.epoch, "kept": "tokens", "replayed_tokens": self.num_tokens}
        return told | ({} if self.compute_ms is None else {"replay_compute_ms": round(self.compute_ms, 3)})


class Seam:
    """Text goes in as it is decoded afresh; what lies beyond the text that was sent comes out."""

    def __init__(self, sent_chars: int, sent_sha256: str) -> None:
        self._left, self._expected, self._sha256 = sent_chars, sent_sha256, hashlib.sha256()

    def beyond(self, text: str) -> str:
        """Raises ResumeMismatch when what was sent is another text."""
        sent, rest = text[: self._left], text[self._left :]
        self._sha256.update(sent.encode())
        self._left -= len(sent)
        if not self._left and self._sha256.hexdigest() != self._expected:
            raise _mismatch("another text was sent than this node makes of the same tokens")
        return rest

    def end(self) -> None:
        """The answer is over. Raises ResumeMismatch when more was sent than there is."""
        if self._left:
            raise _mismatch(f"the text that was sent is {self._left} characters longer than the whole answer")


def _ids(value: Any, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(one) is not int or one < 0 for one in value):
        raise _bad(f"{name} must be a list of token ids")
    return tuple(value)


def _bad(message: str) -> ResumeError:
    return ResumeError(f"{PARAM} {message}" if message.startswith("must") else f"{PARAM}: {message}")


def _mismatch(message: str) -> ResumeMismatch:
    return ResumeMismatch(f"the answer can't go on here: {message}")
