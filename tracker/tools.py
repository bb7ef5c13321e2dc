"""What a chat's request says of the answer's form: the functions that it may call, and the JSON that it must be.

Shapes and bounds are checked here. Whether a schema can be kept to is for the head to say, which makes a grammar of it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tracker.calls import FUNCTION_NAME
from tracker.fields import Strict, is_writable

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 * 1024  # of all of them; descriptions may be long
MAX_SCHEMA_BYTES = 64 * 1024  # a grammar has no more
MAX_DEPTH = 100  # of a schema's JSON: what is written in one place with room to spare may not be in another
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_CHOICES = 'must be "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}'


def _is_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if num_bytes(schema) > MAX_SCHEMA_BYTES:
        raise ValueError(f"is longer than {MAX_SCHEMA_BYTES} bytes")
    return schema


def _is_schema_of_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments are an object, so theirs says so; {} is of a function without any."""
    if schema and schema.get("type") != "object":
        raise ValueError('must be a JSON Schema of type "object"')
    return _is_schema(schema) or NO_PARAMETERS


def num_bytes(value: Any) -> int:
    """Of its JSON. Raises ValueError where it can't be sent on."""
    if _is_deeper(value, MAX_DEPTH):
        raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
    return len(is_writable(json.dumps(value, ensure_ascii=False, allow_nan=False)).encode())


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inner) and (not levels or any(_is_deeper(one, levels - 1) for one in inner))


def _choice(value: Any) -> Any:
    """A word, or the name of the function in an object of its own."""
    if value is None or (isinstance(value, str) and value in ("none", "auto", "required")):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "allowed_tools":
        raise ValueError("send only the tools that may be called")
    function = value.get("function") if kind == "function" and set(value) == {"type", "function"} else None
    if not isinstance(function, dict) or set(function) != {"name"} or not isinstance(function["name"], str):
        raise ValueError(_CHOICES)
    return {"type": "function", "function": {"name": is_writable(function["name"])}}


def _tools(value: list[Tool]) -> list[Tool]:
    names = [tool.function.name for tool in value]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"has the function {twice!r} twice")
    if num_bytes([tool.for_head() for tool in value]) > MAX_TOOLS_BYTES:
        raise ValueError(f"is longer than {MAX_TOOLS_BYTES} bytes")
    return value


class Named(Strict):
    name: str


class NamedFunction(Strict):
    type: Literal["function"]
    function: Named


AsChoice = Literal["none", "auto", "required"] | NamedFunction  # as requests may write it
Writable = Annotated[str, AfterValidator(is_writable)]
FunctionName = Annotated[str, Field(pattern=f"^{FUNCTION_NAME}$")]
Schema = Annotated[dict[str, Any], AfterValidator(_is_schema)]
ToolChoice = Annotated[str | dict[str, Any], BeforeValidator(_choice, json_schema_input_type=AsChoice)]


class Function(Strict):
    name: FunctionName
    description: Writable | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_is_schema_of_object)] | None = None
    strict: bool | None = None  # arguments always satisfy their schema


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def for_head(self) -> dict[str, Any]:
        function = self.function
        told: dict[str, Any] = {"name": function.name, "parameters": function.parameters or NO_PARAMETERS}
        told |= {"description": function.description} if function.description else {}
        return {"type": "function", "function": told}


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS), AfterValidator(_tools)]


class JsonSchema(Strict):
    """Name and description are the client's own: the model isn't shown the schema, it is held to it."""

    name: FunctionName
    json_schema: Annotated[Schema, Field(alias="schema")]
    description: Writable | None = None
    strict: bool | None = None  # answers always satisfy it


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError('json_schema goes with type "json_schema", and only with it')
        return self

    def for_head(self) -> dict[str, Any]:
        given = self.json_schema
        own = {"json_schema": {"name": given.name, "schema": given.json_schema}} if given else {}
        return {"type": self.type} | own


class Formed(Strict):
    """The part of a chat's request that is about the answer's form."""

    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _choice_of_what_is_there(self) -> Formed:
        choice, names = self.tool_choice, {tool.function.name for tool in self.tools or ()}
        if choice not in (None, "none", "auto") and not names:
            raise ValueError("tool_choice: only with tools")
        if isinstance(choice, dict) and choice["function"]["name"] not in names:
            raise ValueError(f"tool_choice: names {choice['function']['name'][:64]!r}, which isn't among the tools")
        return self

    def form(self) -> dict[str, Any]:
        """What the head is asked; nothing of what asks for nothing."""
        asked: dict[str, Any] = {}
        if self.tools:
            asked["tools"] = [tool.for_head() for tool in self.tools]
            asked |= {"tool_choice": self.tool_choice} if self.tool_choice else {}
            asked |= {"parallel_tool_calls": False} if self.parallel_tool_calls is False else {}
        if self.response_format and self.response_format.type != "text":
            asked["response_format"] = self.response_format.for_head()
        return asked
