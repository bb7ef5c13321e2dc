"""POST /api/sessions/<id>/reroute: the head of a session asks for another route. The rules are in reroutes.py."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from tracker import accusations, figures, reroutes
from tracker.auth import asking_node
from tracker.breaker import SUSPICIONS
from tracker.errors import ApiError
from tracker.models import Node
from tracker.node_schemas import Reroute, check
from tracker.probes import prober
from tracker.reroutes import NoDetour
from tracker.views.responses import node_error, read_object, require_method

MAX_BODY_BYTES = 64 * 1024


@csrf_exempt
async def reroute(request: HttpRequest, session_id: str) -> HttpResponse:
    try:
        require_method(request, "POST")
        failed, answer = await sync_to_async(_reroute)(request, session_id)
    except ApiError as error:
        figures.reroutes_refused.labels(error.code).inc()
        if isinstance(error, NoDetour) and error.failed:
            prober.look_at(error.failed)  # without it new sessions would be refused at once, instead of waiting for it
        return node_error(error)
    if failed:
        prober.look_at(failed)
    return JsonResponse(answer)


def _reroute(request: HttpRequest, session_id: str) -> tuple[Node | None, dict[str, Any]]:
    """The node whose state is to be looked at, and what the head is told."""
    head, now = asking_node(request), timezone.now()
    wanted = check(Reroute, read_object(request, MAX_BODY_BYTES))
    failover, answer = reroutes.reroute(head, session_id, wanted, now)
    is_suspect = failover.code in SUSPICIONS and not accusations.accused(failover, now)
    return failover.node if is_suspect else None, answer
