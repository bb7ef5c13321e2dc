"""Errors that an API answers with: OpenAI's shape for users, {"error": {code, message}} for nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RETRY_AFTER_S = 5  # a node that restarts, or one that takes over, is back in about this time


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
        if status == 503:
            self.headers.setdefault("Retry-After", str(RETRY_AFTER_S))

    def as_openai(self) -> dict[str, Any]:
        error_type = "server_error" if self.status >= 500 else "invalid_request_error"
        error_type = "rate_limit_error" if self.status == 429 else error_type
        return {"error": {"message": self.message, "type": error_type, "param": self.param, "code": self.code}}

    def as_wire(self) -> dict[str, Any]:
        return {"error": {"code": self.code or "error", "message": self.message}}


def writable(text: str) -> str:
    """Fit for UTF-8 and for a database: what clients and nodes send may hold half a surrogate pair, or NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")
