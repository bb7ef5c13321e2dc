"""Bodies in and errors out, the same for all views of the APIs."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpRequest, JsonResponse

from tracker import figures
from tracker.errors import ApiError, told


def read_body(request: HttpRequest, max_bytes: int) -> bytes:
    """Raises ApiError 413. Read from the stream: request.body has a limit of its own, and another answer."""
    body: bytes = request.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise ApiError(413, f"The body of your request is over {max_bytes} bytes.", code="too_large")
    return body


def read_object(request: HttpRequest, max_bytes: int) -> dict[str, Any]:
    """What a node says: a JSON object. Raises ApiError 400 or 413."""
    try:
        fields = json.loads(read_body(request, max_bytes))
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON", code="bad_request") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body is not a JSON object", code="bad_request")
    return fields


def require_method(request: HttpRequest, method: str) -> None:
    """Raises ApiError 405."""
    if request.method != method:
        message = f"{request.method} isn't allowed here; use {method}."
        raise ApiError(405, message, code="method_not_allowed", headers={"Allow": method})


class OpenAiError(JsonResponse):
    """The middleware logs it, with what it knows of the request."""

    def __init__(self, error: ApiError) -> None:
        self.error = told(error)
        super().__init__(self.error.as_openai(), status=self.error.status, headers=self.error.headers)


def openai_error(error: ApiError) -> JsonResponse:
    return OpenAiError(error)


def node_error(error: ApiError) -> JsonResponse:
    figures.refusals.labels("node", error.code or "error").inc()
    return JsonResponse(error.as_wire(), status=error.status, headers=error.headers)
