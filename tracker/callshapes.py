"""Tool calls in the two shapes that OpenAI's clients get: deltas of a stream, and a whole message."""

from __future__ import annotations

import hashlib
from typing import Any

from tracker.calls import CallStart, Content, Piece, Reading

ID_PREFIX, ID_DIGITS = "call_", 24


def call_id(completion_id: str, choice: int, index: int) -> str:
    """The same for the same call, however it is told. Unique, as completion ids are."""
    digest = hashlib.sha256(f"{completion_id} {choice} {index}".encode()).hexdigest()
    return ID_PREFIX + digest[:ID_DIGITS]


def delta(piece: Piece, completion_id: str, choice: int) -> dict[str, Any]:
    if isinstance(piece, Content):
        return {"content": piece.text}
    if isinstance(piece, CallStart):
        own = {"id": call_id(completion_id, choice, piece.index), "type": "function"}
        return {"tool_calls": [{"index": piece.index} | own | {"function": {"name": piece.name, "arguments": ""}}]}
    return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}


def message(reading: Reading, completion_id: str, choice: int) -> dict[str, Any]:
    """Content beside calls is null where there is none."""
    if not reading.calls:
        return {"content": reading.content}
    calls = [
        {
            "id": call_id(completion_id, choice, index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(reading.calls)
    ]
    return {"content": reading.content or None, "tool_calls": calls}
