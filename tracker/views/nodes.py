"""POST /api/nodes/register, /heartbeat, /unregister: what nodes say. The rules are in registration.py."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from tracker import gate, registration
from tracker.auth import asking_node, registering
from tracker.errors import ApiError
from tracker.node_schemas import Heartbeat, Registration, check
from tracker.views.responses import node_error, read_object, require_method

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024

Rule = Callable[[HttpRequest], dict[str, Any]]


def node_view(rule: Rule) -> Callable[[HttpRequest], HttpResponse]:
    @csrf_exempt
    @wraps(rule)
    def answered(request: HttpRequest) -> HttpResponse:
        try:
            require_method(request, "POST")
            return JsonResponse(rule(request))
        except ApiError as error:
            return node_error(error)

    return answered


@node_view
def register(request: HttpRequest) -> dict[str, Any]:
    who = registering(request)
    fields = read_object(request, MAX_BODY_BYTES)
    registration.check_version(fields)
    address = request.META.get("REMOTE_ADDR", "")
    answer = registration.register(who, check(Registration, fields), timezone.now(), address)
    _will_be_shown(answer)
    return answer


@node_view
def heartbeat(request: HttpRequest) -> dict[str, Any]:
    node = asking_node(request)
    news = check(Heartbeat, read_object(request, MAX_BODY_BYTES))
    answer = registration.heartbeat(node, news, timezone.now())
    _will_be_shown(answer)
    return answer


@node_view
def unregister(request: HttpRequest) -> dict[str, Any]:
    node = asking_node(request)
    node.leave(timezone.now())
    logger.info("node %s left", node.name)
    return {"status": "left"}


def _will_be_shown(answer: dict[str, Any]) -> None:
    """Keys that were just made: strangers behind the node's address can't keep it from using them."""
    for name in ("node_key", "new_key"):
        if name in answer:
            gate.passed(answer[name])
