"""POST /api/nodes/register, /heartbeat, /unregister: what nodes say. The rules are in registration.py."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from tracker import gate, registration
from tracker.auth import bearer
from tracker.errors import ApiError
from tracker.models import Node
from tracker.node_schemas import Heartbeat, Registration, check
from tracker.registration import Bearer
from tracker.views.responses import node_error, read_body, require_method

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
    who = _bearer(request)
    fields = _fields(request)
    registration.check_version(fields)
    address = request.META.get("REMOTE_ADDR", "")
    answer = registration.register(who, check(Registration, fields), timezone.now(), address)
    gate.passed(answer.get("node_key", ""))
    return answer


@node_view
def heartbeat(request: HttpRequest) -> dict[str, Any]:
    node = _node(request)
    return registration.heartbeat(node, check(Heartbeat, _fields(request)), timezone.now())


@node_view
def unregister(request: HttpRequest) -> dict[str, Any]:
    node = _node(request)
    node.leave(timezone.now())
    logger.info("node %s left", node.name)
    return {"status": "left"}


def _bearer(request: HttpRequest) -> Bearer:
    text = bearer(request)
    gate.check(request, text)
    try:
        who = registration.authenticate(text)
    except ApiError:
        gate.failed(request, text)
        raise
    gate.passed(text)
    return who


def _node(request: HttpRequest) -> Node:
    node = _bearer(request).node
    if node is None:
        raise ApiError(401, "Authorization: Bearer must carry this node's key, not a join token", code="unauthorized")
    return node


def _fields(request: HttpRequest) -> dict[str, Any]:
    try:
        fields = json.loads(read_body(request, MAX_BODY_BYTES))
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON", code="bad_request") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body is not a JSON object", code="bad_request")
    return fields
