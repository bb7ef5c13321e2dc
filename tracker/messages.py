"""The messages of a chat's request: who said what, which functions were called and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from tracker.errors import ApiError
from tracker.fields import Strict, is_writable
from tracker.parameters import MESSAGE, PART, honoured_only
from tracker.tools import MAX_TOOLS, FunctionName, Writable

MAX_ID_CHARS = 200
NO_CONTENT = "must be a text, or a list of text parts"
NO_CALL_ID = "has to be given: which call this answers"


class Part(Strict):
    type: Literal["text"]
    text: str


_PARTS = TypeAdapter(list[Part])  # its errors say which part


def _joined(value: Any) -> Any:
    """Content given as a list of text parts is their text, one after the other."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(NO_CONTENT)
    return "".join(part.text for part in _PARTS.validate_python(value))


Content = Annotated[str, BeforeValidator(_joined, json_schema_input_type=str | list[Part]), AfterValidator(is_writable)]


class CalledFunction(Strict):
    name: FunctionName
    arguments: Writable  # JSON, unless max_tokens cut it off


class ToolCall(Strict):
    id: Annotated[Writable, Field(min_length=1, max_length=MAX_ID_CHARS)]
    type: Literal["function"]
    function: CalledFunction


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=MAX_ID_CHARS)] | None = None

    def for_head(self) -> dict[str, Any]:
        role = "system" if self.role == "developer" else self.role  # chat templates know the older word
        said: dict[str, Any] = {"role": role, "content": self.content or ""}
        if self.tool_calls:
            said["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return said | ({} if self.tool_call_id is None else {"tool_call_id": self.tool_call_id})


def honoured_message(index: int, message: Any) -> Any:
    """The message, and the parts of its content, with what is honoured. Raises ApiError 400."""
    if not isinstance(message, dict):
        return message
    within = f"messages[{index}]."
    if message.get("role") == "function":  # before its name is looked at, which such messages have
        raise _refusal(f"{within}role", 'the role "function" is an older one; send "tool", with a tool_call_id')
    fields, content = honoured_only(message, MESSAGE, within), message.get("content")
    if isinstance(content, list):
        fields["content"] = [
            honoured_only(part, PART, f"{within}content[{number}].") if isinstance(part, dict) else part
            for number, part in enumerate(content)
        ]
    return fields


def check_roles(messages: Sequence[Message]) -> None:
    """What a message has to have depends on who says it, and on what was called before. Raises ApiError 400."""
    open_calls: list[str] = []  # that the messages of tools which follow have to answer
    for index, message in enumerate(messages):
        for name, wrong in _wrong(message, open_calls):
            code = "missing_required_parameter" if wrong is NO_CALL_ID else "invalid_value"
            raise _refusal(f"messages[{index}].{name}", wrong, code)
        if message.tool_call_id is None:
            open_calls = [call.id for call in message.tool_calls or ()]
        else:
            open_calls.remove(message.tool_call_id)
    if open_calls:
        raise _refusal("messages", f"end before the call {open_calls[0]!r} is answered by a message of a tool")


def _refusal(param: str, wrong: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, f"{param}: {wrong}.", code=code, param=param)


def _wrong(message: Message, open_calls: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(the field to blame, why)"""
    role, calls, answered = message.role, message.tool_calls, message.tool_call_id
    ids = [call.id for call in calls or ()]
    if calls and role != "assistant":
        yield "tool_calls", 'only in messages of the role "assistant"'
    twice = next((call.id for number, call in enumerate(calls or ()) if call.id in ids[:number]), None)
    if twice is not None:
        yield "tool_calls", f"has two calls of the id {twice[:60]!r}"
    if answered is not None and role != "tool":
        yield "tool_call_id", 'only in messages of the role "tool"'
    if role == "tool" and answered is None:
        yield "tool_call_id", NO_CALL_ID
    if role == "tool" and answered not in open_calls:
        yield "tool_call_id", "answers no call of the assistant's message before it, or one that is answered already"
    if role != "tool" and open_calls:
        yield "role", f'must be "tool": the call {open_calls[0][:60]!r} isn\'t answered yet'
    if message.content is None and not calls:
        yield "content", NO_CONTENT
    if message.content == "" and not calls and role != "tool":
        yield "content", "must not be empty"
