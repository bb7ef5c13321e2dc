"""The messages of a chat's request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from tracker.fields import Strict, Text
from tracker.parameters import MESSAGE, PART, honoured_only


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


def honoured_message(index: int, message: Any) -> Any:
    """The message, and the parts of its content, with what is honoured. Raises ApiError 400."""
    if not isinstance(message, dict):
        return message
    within = f"messages[{index}]."
    fields, content = honoured_only(message, MESSAGE, within), message.get("content")
    if isinstance(content, list):
        fields["content"] = [
            honoured_only(part, PART, f"{within}content[{number}].") if isinstance(part, dict) else part
            for number, part in enumerate(content)
        ]
    return fields
