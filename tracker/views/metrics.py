"""GET /metrics, for Prometheus. Async: figures are read where they are written, on the event loop's thread."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from relay import prometheus
from tracker import figures, gate
from tracker.auth import bearer
from tracker.checks import is_loopback
from tracker.errors import ApiError
from tracker.views.responses import node_error, require_method


async def metrics(request: HttpRequest) -> HttpResponse:
    """Figures of this process; each of several is scraped by itself."""
    try:
        require_method(request, "GET")
        _admit(request)
    except ApiError as error:
        return node_error(error)
    return HttpResponse(prometheus.exposed() + figures.exposed(), content_type=prometheus.CONTENT_TYPE)


def _admit(request: HttpRequest) -> None:
    """Raises ApiError. Without a token only where nobody else can ask: figures tell who is connected."""
    if not settings.METRICS_TOKEN:
        if is_loopback(urlsplit(settings.PUBLIC_URL).hostname or ""):
            return
        message = "set METRICS_TOKEN to open /metrics, and let Prometheus send it as Authorization: Bearer TOKEN"
        raise ApiError(403, message, code="forbidden")
    given = bearer(request)
    if hmac.compare_digest(given.encode(), settings.METRICS_TOKEN.encode()):
        return
    gate.check(request, given)
    gate.failed(request, given)
    raise ApiError(401, "Authorization: Bearer must carry the site's METRICS_TOKEN", code="unauthorized")
