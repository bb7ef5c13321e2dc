"""The answers of the API as JSON Schema: for its OpenAPI document, and for tests that hold answers against it."""

from __future__ import annotations

from typing import Any

from tracker.errors import CODES

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
NULL: Schema = {"type": "null"}
NOT_NULL: Schema = {"not": {"type": "null"}}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def shape(properties: Schema, optional: Schema | None = None) -> Schema:
    """An object with all of these, and maybe these."""
    return {"type": "object", "properties": properties | (optional or {}), "required": list(properties)}


FUNCTION = shape({"name": TEXT, "arguments": {"type": "string", "description": "JSON"}})
TOOL_CALL = shape({"id": TEXT, "type": one_of("function"), "function": FUNCTION})
CALL_DELTA = shape({"index": WHOLE}, {"id": TEXT, "type": one_of("function"), "function": {"type": "object"}})
TOKEN_LOGPROB = {"token": TEXT, "logprob": NUMBER, "bytes": or_null(listed(WHOLE))}
CHAT_LOGPROBS = shape(
    {"content": listed(shape(TOKEN_LOGPROB | {"top_logprobs": listed(shape(TOKEN_LOGPROB))})), "refusal": NULL}
)
COMPLETION_LOGPROBS = shape(
    {
        "tokens": listed(TEXT),
        "token_logprobs": listed(NUMBER),
        "top_logprobs": listed({"type": "object", "additionalProperties": NUMBER}),
        "text_offset": listed(WHOLE),
    }
)
MESSAGE = shape(
    {"role": one_of("assistant"), "content": or_null(TEXT), "refusal": NULL}, {"tool_calls": listed(TOOL_CALL)}
)
DELTA: Schema = {
    "type": "object",
    "properties": {
        "role": one_of("assistant"),
        "content": or_null(TEXT),
        "tool_calls": listed(CALL_DELTA),
    },
}
IN_CHUNKS: Schema = {"usage": or_null(ref("Usage"))}  # with include_usage: null, but for the last
REASON = one_of("stop", "length", "tool_calls")


def _choice(properties: Schema, logprobs: Schema, reason: Schema = REASON) -> Schema:
    return shape({"index": WHOLE, **properties, "logprobs": or_null(logprobs), "finish_reason": reason})


def _answer(kind: str, choice: Schema, own: Schema, optional: Schema | None = None) -> Schema:
    frame = {"id": TEXT, "object": one_of(kind), "created": WHOLE, "model": TEXT, "choices": listed(choice)}
    trace = {"meshnet": {"type": "object", "description": "the trace that was asked for"}}
    return shape(frame | own, trace | (optional or {}))


USAGE = shape({"prompt_tokens": WHOLE, "completion_tokens": WHOLE, "total_tokens": WHOLE})
ERROR = shape(
    {
        "error": shape(
            {
                "message": TEXT,
                "type": one_of("invalid_request_error", "rate_limit_error", "server_error"),
                "param": or_null(TEXT),
                "code": one_of(*CODES),
            }
        )
    }
)
MODEL = shape({"id": TEXT, "object": one_of("model"), "created": WHOLE, "owned_by": TEXT})
COUNTS = dict.fromkeys(("requests", "failed", "prompt_tokens", "completion_tokens"), WHOLE)
LIMIT = shape({"limit": WHOLE, "used": WHOLE, "left": WHOLE, "resets_s": NUMBER})

SHAPES: dict[str, Schema] = {
    "Error": ERROR,
    "Usage": USAGE,
    "ChatCompletion": _answer("chat.completion", _choice({"message": MESSAGE}, CHAT_LOGPROBS), {"usage": ref("Usage")}),
    "ChatCompletionChunk": _answer(
        "chat.completion.chunk", _choice({"delta": DELTA}, CHAT_LOGPROBS, or_null(REASON)), {}, IN_CHUNKS
    ),
    "Completion": _answer("text_completion", _choice({"text": TEXT}, COMPLETION_LOGPROBS), {"usage": ref("Usage")}),
    "CompletionChunk": _answer(
        "text_completion", _choice({"text": TEXT}, COMPLETION_LOGPROBS, or_null(REASON)), {}, IN_CHUNKS
    ),
    "Model": MODEL,
    "ModelList": shape({"object": one_of("list"), "data": listed(ref("Model"))}),
    "KeyUsage": shape(
        {
            "object": one_of("usage"),
            "key": shape({"id": TEXT, "label": TEXT, "models": or_null(listed(TEXT)), "expires": or_null(TEXT)}),
            "limits": {"type": "object", "additionalProperties": LIMIT},
            "since": {"type": "string", "format": "date"},
            "total": shape(COUNTS),
            "data": listed(shape({"day": {"type": "string", "format": "date"}, "model": TEXT} | COUNTS)),
        }
    ),
}
