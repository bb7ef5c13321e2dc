"""Every answer's x-request-id and Server-Timing, what a page may load, and the API's form for Django's own errors.

Async, and outermost: no thread is held for it. A stream is passed on as it is.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.decorators import async_only_middleware

from tracker import figures, kept
from tracker.errors import ApiError, of_status, writable
from tracker.views.responses import OpenAiError, node_error, openai_error

REQUEST_ID, SERVER_TIMING = "x-request-id", "Server-Timing"
POLICY = "Content-Security-Policy"
OURS_ALONE = (  # for any page that has no stricter one: the admin's, a login's, an error's
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)

logger = logging.getLogger(__name__)

Answer = Callable[[HttpRequest], Awaitable[HttpResponseBase]]

_current: ContextVar[str] = ContextVar("request_id", default="")


@dataclass(slots=True)
class Timings:
    """How long the parts of an answer took, one after the other. The clock is handed in."""

    clock: Callable[[], float]
    began: float = field(init=False)
    _parts: dict[str, float] = field(default_factory=dict, init=False)
    _part_began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self._part_began = self.clock()

    def end(self, part: str) -> None:
        """It began when the part before it ended."""
        now = self.clock()
        self._parts[part], self._part_began = now - self._part_began, now

    def header(self) -> str:
        """begin;dur=3.1, head;dur=40.2, total;dur=43.4: milliseconds, up to the first byte."""
        parts = self._parts | {"total": self.clock() - self.began}
        return ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in parts.items())


@async_only_middleware
def answers_named_and_timed(get_response: Answer) -> Answer:
    async def answered(request: HttpRequest) -> HttpResponseBase:
        request_id, timings = f"req_{secrets.token_hex(16)}", Timings(time.perf_counter)
        request.request_id, request.timings = request_id, timings  # type: ignore[attr-defined]
        _current.set(request_id)
        response = _not_ours(request) or await get_response(request)
        if response.status_code >= 400 and _is_of_api(request.path) and not _is_json(response):
            response = openai_error(of_status(response.status_code))
        if isinstance(response, OpenAiError):
            _log(request, response)
        if response.get("Content-Type", "").startswith("text/html"):
            response.headers.setdefault(POLICY, OURS_ALONE)
        response[REQUEST_ID], response[SERVER_TIMING] = request_id, timings.header()
        return response

    return answered


def _not_ours(request: HttpRequest) -> HttpResponseBase | None:
    """For a host that isn't served here. Django would log it as an error of the site's, with a traceback."""
    try:
        request.get_host()
    except DisallowedHost:
        host = writable(request.META.get("HTTP_HOST", ""))[:100]
    else:
        return None
    logger.info("refused: host %r is neither PUBLIC_URL's nor one of EXTRA_HOSTS", host)
    message = f"The host {host!r} isn't served here; this site is {settings.PUBLIC_URL}."
    error = ApiError(400, message, code="invalid_value")
    if _is_of_api(request.path):
        return openai_error(error)
    if request.path.startswith("/api/"):
        return _logged(node_error(error))
    return _logged(HttpResponse(f"{message}\n", status=400, content_type="text/plain; charset=utf-8"))


def _log(request: HttpRequest, response: OpenAiError) -> None:
    """A count, and one line that a request id leads to. A slip of a client's is no warning; Django's line has less."""
    figures.refusals.labels("api", response.error.code or "").inc()
    path = request.path.encode("unicode_escape").decode()
    logger.info("%s %s: %s", request.method, path[:200], kept.in_a_line(response.error))
    if response.status_code != 500:
        _logged(response)


def _logged(response: HttpResponseBase) -> HttpResponseBase:
    response._has_been_logged = True  # type: ignore[attr-defined]  # Django's own mark (django.utils.log)
    return response


def _is_of_api(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")


def _is_json(response: HttpResponseBase) -> bool:
    return response.get("Content-Type", "").startswith("application/json")


def request_id_of(request: HttpRequest) -> str:
    """As its answer says it; empty where no middleware has seen the request."""
    return getattr(request, "request_id", "")


def timings_of(request: HttpRequest) -> Timings:
    """Of a request that no middleware has seen nobody is told."""
    return getattr(request, "timings", None) or Timings(time.perf_counter)


class NamesRequest(logging.Filter):
    """Gives a log record the id of the request that it is logged for, where there is one (meshweb/logs.py shows it)."""

    def filter(self, record: logging.LogRecord) -> bool:
        if request_id := _current.get():
            record.request_id = request_id
        return True
