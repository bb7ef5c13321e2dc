"""The messages of a chat's request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from tracker.fields import Strict, Text


def _joined(value: Any) -> Any:
    """Content given as a list of text parts is their text, one after the other."""
    if not isinstance(value, list):
        return value
    return "".join(Part.model_validate(part).text for part in value)


class Part(Strict):
    type: Literal["text"]
    text: str


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Text, BeforeValidator(_joined)]
