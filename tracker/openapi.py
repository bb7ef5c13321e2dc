"""The OpenAPI document of the API, made from what checks its requests: the table of parameters and their types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from tracker import parameters
from tracker.errors import CODES
from tracker.openai import ChatRequest, CompletionRequest
from tracker.parameters import Table
from tracker.shapes import NOT_NULL, SHAPES, TEXT, Schema, one_of, ref

VERSION = "1"
REFERENCE = "#/components/schemas/{model}"
# The parts of a request that have a table of their own.
_TABLES: dict[str, Table] = {
    "ChatRequest": parameters.CHAT,
    "CompletionRequest": parameters.COMPLETION,
    "StreamOptions": parameters.STREAM_OPTIONS,
    "Extras": parameters.MESHNET,
    "Message": parameters.MESSAGE,
    "Part": parameters.PART,
}
# pydantic's own words for bounds that it checks after a function of ours.
_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
# What a message has to have depends on who says it (tracker/messages.py).
_ROLES = [
    {"properties": {"role": one_of("system", "developer", "user"), "content": NOT_NULL}, "required": ["content"]},
    {"properties": {"role": one_of("assistant"), "content": NOT_NULL}, "required": ["content"]},
    {"properties": {"role": one_of("assistant"), "tool_calls": NOT_NULL}, "required": ["tool_calls"]},
    {"properties": {"role": one_of("tool"), "tool_call_id": NOT_NULL}, "required": ["tool_call_id", "content"]},
]
_HEADERS = {
    "x-request-id": {"description": "names the request in the site's log", "schema": TEXT},
    "Server-Timing": {"description": "milliseconds up to the first byte", "schema": TEXT},
}
# Of a key with limits, in what its requests are answered; of a key without none of them come.
_LIMITS = {
    f"x-ratelimit-{what}-{counts}": {"description": f"{counts}: {words}", "schema": schema}
    for counts in ("requests", "tokens")
    for what, words, schema in (
        ("limit", "what the key may ask", {"type": "integer"}),
        ("remaining", "what is left of it", {"type": "integer"}),
        ("reset", "when all of it is there again, like 1m0s", TEXT),
    )
}
_RETRY = {"Retry-After": {"description": "seconds after which to ask again", "schema": {"type": "integer"}}}
_HEADERS_OF = {
    "401": {"WWW-Authenticate": {"description": "Bearer", "schema": TEXT}},
    "405": {"Allow": {"description": "the method that the path wants", "schema": TEXT}},
    "429": _RETRY,
    "503": _RETRY,
}
_CODES_OF_ALL = ("invalid_api_key", "method_not_allowed", "rate_limit_exceeded", "internal_error")
_CODES_OF_ANSWERS = (
    *(code for code, meaning in CODES.items() if meaning.status == 400),
    "cancelled",
    *(
        "model_not_found",
        "model_refused",
        "too_large",
        "node_failed",
        "resume_mismatch",
        "no_route",
        "busy",
        "draining",
    ),
    "deadline_exceeded",
)


@cache
def document(public_url: str) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Meshnet",
            "version": VERSION,
            "description": "A large language model over many machines, with the API of OpenAI's clients. "
            "A parameter that isn't honoured is refused, unless its value asks for nothing.",
        },
        "servers": [{"url": public_url}],
        "security": [{"key": []}],
        "paths": _paths(),
        "components": {
            "schemas": SHAPES | _requests(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "an API key"}},
        },
    }


def _paths() -> dict[str, Any]:
    name = {"name": "model", "in": "path", "required": True, "schema": TEXT}
    days = {"name": "days", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 366, "default": 30}}
    return {
        "/v1/chat/completions": {"post": _asking("Answer a chat", "ChatRequest", "ChatCompletion")},
        "/v1/completions": {"post": _asking("Continue a text", "CompletionRequest", "Completion")},
        "/v1/models": {"get": _operation("List the models that can be asked now", _json("ModelList"))},
        "/v1/models/{model}": {
            "get": _operation("Tell of one model", _json("Model"), "model_not_found") | {"parameters": [name]}
        },
        "/v1/usage": {
            "get": _operation(
                "Tell what the key has used and may use",
                _json("KeyUsage"),
                *("invalid_value", "unknown_parameter"),
            )
            | {"parameters": [days]}
        },
    }


def _asking(summary: str, request: str, answer: str) -> dict[str, Any]:
    """Its stream has no schema of its own: version 3.1 knows none for events."""
    words = f"server-sent events; the data of each is a {answer}Chunk, of the last one [DONE]"
    stream = {"schema": {"description": words, "x-chunk": ref(f"{answer}Chunk")}}
    content = _json(answer) | {"text/event-stream": stream}
    body = {"required": True, "content": _json(request)}
    operation = _operation(summary, content, *_CODES_OF_ANSWERS)
    for status in ("200", "429"):
        operation["responses"][status]["headers"] |= _LIMITS
    return operation | {"requestBody": body}


def _operation(summary: str, content: Mapping[str, Any], *codes: str) -> dict[str, Any]:
    errors: dict[str, list[str]] = {}
    for code in (*_CODES_OF_ALL, *codes):
        errors.setdefault(str(CODES[code].status), []).append(f"`{code}`: {CODES[code].words}")
    responses = {"200": {"description": "the answer", "headers": dict(_HEADERS), "content": content}} | {
        status: {
            "description": "; ".join(words),
            "headers": _HEADERS | _HEADERS_OF.get(status, {}),
            "content": _json("Error"),
        }
        for status, words in sorted(errors.items())
    }
    return {"summary": summary, "responses": responses}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": ref(name)}}


def _requests() -> dict[str, Schema]:
    schemas: dict[str, Schema] = {}
    for model in (ChatRequest, CompletionRequest):
        schemas |= _schemas_of(model)
    told = {name: _with_table(schema, _TABLES[name]) if name in _TABLES else schema for name, schema in schemas.items()}
    told["Message"]["anyOf"] = _ROLES
    return told


def _schemas_of(model: type[BaseModel]) -> dict[str, Schema]:
    """The model's and those that it is made of, by name."""
    schema = _cleaned(model.model_json_schema(ref_template=REFERENCE))
    return {model.__name__: schema, **schema.pop("$defs", {})}


def _cleaned(node: Any) -> Any:
    """Without the names of our classes and attributes, and with the bounds' names in JSON Schema."""
    if isinstance(node, list):
        return [_cleaned(one) for one in node]
    if not isinstance(node, dict):
        return node
    names = {"title", "default"} if "type" in node or "anyOf" in node or "$ref" in node else set()
    cleaned = {_BOUNDS.get(key, key): _cleaned(value) for key, value in node.items() if key not in names}
    return cleaned | ({"additionalProperties": False} if "patternProperties" in node else {})


def _with_table(schema: Schema, table: Table) -> Schema:
    """What isn't honoured may be sent with the values that ask for nothing."""
    properties: Schema = {}
    for name, row in table.items():
        if row.is_honoured:
            properties[name] = schema["properties"][name] | {"description": row.words}
        else:
            properties[name] = {"enum": [None, *row.neutral], "description": f"not honoured: {row.words}"}
    return schema | {"properties": properties}
