"""GET /v1/usage: what an API key may use, what is left of it, and what it has used, told to whoever holds the key."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from tracker import metering, usage
from tracker.auth import authenticate_api_key
from tracker.errors import ApiError
from tracker.limits import Standing
from tracker.models import ApiKey, Usage
from tracker.views.models import openai_view
from tracker.views.responses import require_method

DEFAULT_DAYS, MAX_DAYS = 30, 366


@openai_view
def usage_of_key(request: HttpRequest) -> HttpResponse:
    require_method(request, "GET")
    key, now = authenticate_api_key(request), timezone.now()
    if key is None:
        message = "Usage is told to the holder of an API key: send it as `Authorization: Bearer KEY`."
        raise ApiError(401, message, code="invalid_api_key")
    since = usage.since(now, _num_days(request))
    fields = {
        "object": "usage",
        "key": _key(key),
        "limits": {one.limit.name: _standing(one) for one in metering.standings(key, now)},
        "since": since.isoformat(),
        "total": usage.totals(Usage.objects.filter(api_key=key, day__gte=since)),
        "data": usage.days(key, since),
    }
    return JsonResponse(fields, headers={"Cache-Control": "no-store"})


def _key(key: ApiKey) -> dict[str, Any]:
    names = list(key.allowed_models.values_list("name", flat=True))
    expires = key.expires.isoformat() if key.expires else None
    return {"id": key.key_id, "label": key.label, "models": names or None, "expires": expires}


def _standing(standing: Standing) -> dict[str, Any]:
    return {
        "limit": standing.most,
        "used": standing.used,
        "left": standing.left,
        "resets_s": round(standing.resets_s, 1),
    }


def _num_days(request: HttpRequest) -> int:
    """Raises ApiError 400."""
    unknown = sorted(set(request.GET) - {"days"})
    if unknown:
        name = unknown[0][:100]
        raise ApiError(400, f"{name}: unknown here; only days may be given.", code="unknown_parameter", param=name)
    if len(request.GET.getlist("days")) > 1:
        raise ApiError(400, "days: is given more than once.", code="invalid_value", param="days")
    text = request.GET.get("days", str(DEFAULT_DAYS))
    num_days = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_DAYS)) else 0
    if not 1 <= num_days <= MAX_DAYS:
        message = f"days: must be a whole number from 1 to {MAX_DAYS}."
        raise ApiError(400, message, code="invalid_value", param="days")
    return num_days
