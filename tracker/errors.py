"""Errors that an API answers with: OpenAI's shape for users, {"error": {code, message}} for nodes.

Users get the codes of one table, each with its status (docs/api.md shows it). Nodes and the relay say what went wrong
in codes of theirs; `told` translates them, and is where every error of the API passes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracker import losses

RETRY_AFTER_S = 5  # a node that restarts, or one that takes over, is back in about this time


@dataclass(frozen=True, slots=True)
class Meaning:
    status: int
    words: str


CODES = {
    "invalid_json": Meaning(400, "the body is no JSON object"),
    "missing_required_parameter": Meaning(400, "the parameter has to be given"),
    "invalid_value": Meaning(400, "the parameter can't have this value"),
    "unknown_parameter": Meaning(400, "there is no such parameter"),
    "unsupported_parameter": Meaning(400, "the parameter asks for something that can't be had here"),
    "string_above_max_length": Meaning(
        400, "the prompt is over 1 MiB as JSON on its way to a node (a newline counts two)"
    ),
    "context_length_exceeded": Meaning(400, "the prompt leaves no room in the model's context"),
    "above_key_limit": Meaning(400, "it takes more than the key is given in all; no waiting helps"),
    "chat_template_missing": Meaning(400, "the model has no chat template; use /v1/completions"),
    "invalid_api_key": Meaning(401, "the API key is missing, unknown, revoked or expired"),
    "model_refused": Meaning(403, "the operator of this site refuses the model"),
    "cancelled": Meaning(403, "an operator of the site ended the answer"),
    "model_not_found": Meaning(404, "there is no such model, or the key may not ask it"),
    "unknown_url": Meaning(404, "there is nothing at this path"),
    "method_not_allowed": Meaning(405, "the path wants the method that `Allow` names"),
    "too_large": Meaning(413, "the body is over 4 MiB"),
    "rate_limit_exceeded": Meaning(429, "a limit of the key is reached, or many bad keys came from your address"),
    "internal_error": Meaning(500, "the site's own fault; its log has more under the x-request-id"),
    "node_failed": Meaning(502, "a node was lost or failed, and no other could go on in time"),
    "resume_mismatch": Meaning(502, "the node that took over makes another text of the same tokens"),
    "no_route": Meaning(503, "no nodes for all layers now; the message names the layers"),
    "busy": Meaning(503, "the nodes have no room for so many tokens now"),
    "draining": Meaning(503, "the site is shutting down, to start again"),
    "deadline_exceeded": Meaning(504, "the answer wasn't finished in its time"),
}

# What nodes, the relay and the parts that both APIs share say, where users are told another code.
_TOLD = {
    "bad_request": "invalid_value",
    "deadline": "deadline_exceeded",
    "head_silent": "node_failed",
    "internal": "node_failed",
    "peer_busy": "busy",
}
_OF_STATUS = {
    400: "invalid_value",
    401: "invalid_api_key",
    404: "unknown_url",
    405: "method_not_allowed",
    413: "too_large",
    429: "rate_limit_exceeded",
    500: "internal_error",
    503: "busy",
    504: "deadline_exceeded",
}
_SLOW_HOP = re.compile(r"(layers? [\d–]+ on (?:node|peer) [^:;]+): ")
_TOO_LONG = re.compile(r"the prompt has (\d+) tokens; with its answer it must fit in (\d+)", re.ASCII)
_MORE_TIME = "Ask again, ask for a shorter answer (max_tokens), or give it more time (meshnet.deadline_s)."


class ApiError(Exception):
    """Raised where found, answered once, at the edge of the API. `param` names what the client should mend."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, writable(message)
        self.code, self.param = code and writable(code), param and writable(param)
        self.headers = dict(headers or {})
        if status == 401:
            self.headers.setdefault("WWW-Authenticate", "Bearer")
        if status in (429, 503):
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    def as_openai(self) -> dict[str, Any]:
        error_type = "server_error" if self.status >= 500 else "invalid_request_error"
        error_type = "rate_limit_error" if self.status == 429 else error_type
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

    def as_wire(self) -> dict[str, Any]:
        return {"error": {"code": self.code or "error", "message": self.message}}


def told(error: ApiError) -> ApiError:
    """The error as a user is told it: with a code of the table, its status, and what to do."""
    code, message = _code_for(error), _words_for(error)
    status = CODES[code].status
    if (code, status, message) == (error.code, error.status, error.message):
        return error
    return ApiError(status, message, code=code, param=error.param, headers=error.headers)


def _words_for(error: ApiError) -> str:
    """Nodes say in their words, and without advice, what a client can do something about."""
    if error.code == "deadline":
        slow = _SLOW_HOP.search(error.message)
        waited = f": it waited for {slow[1]}" if slow else ""
        return f"The answer wasn't finished in its time{waited}. {_MORE_TIME}"
    if error.code == "context_length_exceeded" and (found := _TOO_LONG.fullmatch(error.message)):
        num_prompt, num_context = found.groups()
        return (
            f"The prompt has {num_prompt} tokens, and the model's context has {num_context} for prompt and answer. "
            "Shorten the prompt."
        )
    if (code := _code_for(error)) in ("node_failed", "busy"):
        return losses.in_a_sentence(error.message, code) or error.message
    return error.message


def _code_for(error: ApiError) -> str:
    code = _TOLD.get(error.code or "", error.code or "")
    if code in CODES:
        return code
    return _OF_STATUS.get(error.status, "node_failed" if error.status > 500 else "invalid_value")


def known_code(code: str) -> str:
    """The code of the table for one that a node or the relay may have said."""
    found = _TOLD.get(code, code)
    return found if found in CODES else "other"


def of_status(status: int) -> ApiError:
    """Of an answer that Django gave by itself: a host that isn't ours, a path of no view, a fault."""
    code = _OF_STATUS.get(status, "internal_error" if status > 500 else "invalid_value")
    return ApiError(status, f"This request can't be answered: {CODES[code].words}.", code=code)


def writable(text: str) -> str:
    """Fit for UTF-8 and for a database: what clients and nodes send may hold half a surrogate pair, or NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")
