"""GET /metrics, for Prometheus. Async: figures are read where they are written, on the event loop's thread.

Those of the whole site are counted in the database, in a thread; every process of a site tells the same.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from relay import prometheus
from tracker import census, figures, gate
from tracker.auth import bearer
from tracker.census import Census
from tracker.checks import is_loopback
from tracker.errors import ApiError
from tracker.views.responses import node_error, require_method

CENSUS_S = 3.0  # a scrape is given up after ten

logger = logging.getLogger(__name__)


async def metrics(request: HttpRequest) -> HttpResponse:
    """Figures of this process; each of several is scraped by itself."""
    try:
        require_method(request, "GET")
        _admit(request)
    except ApiError as error:
        return node_error(error)
    site = await _census()
    own = prometheus.exposed() + figures.exposed()
    return HttpResponse(own + (census.exposed(site) if site else b""), content_type=prometheus.CONTENT_TYPE)


async def _census() -> Census | None:
    """None where the database doesn't answer: a process is watched above all when something is wrong."""
    try:
        async with asyncio.timeout(CENSUS_S):
            return await sync_to_async(census.taken)(timezone.now())
    except (DatabaseError, TimeoutError) as error:
        logger.warning("/metrics goes without the site's figures: %s", str(error) or f"no answer for {CENSUS_S:.0f} s")
        return None


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
