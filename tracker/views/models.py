"""GET /v1/models: what can be asked right now. A model is in it only while a full route exists."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from tracker import chats, epochs
from tracker.auth import authenticate_api_key
from tracker.errors import ApiError
from tracker.models import LanguageModel
from tracker.views.responses import openai_error, require_method

View = Callable[..., HttpResponse]


def openai_view(view: View) -> View:
    """Errors in OpenAI's shape; no cookies, so no CSRF."""

    @csrf_exempt
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except ApiError as error:
            return openai_error(error)

    return answered


@openai_view
def model_list(request: HttpRequest) -> HttpResponse:
    require_method(request, "GET")
    api_key, now = authenticate_api_key(request), timezone.now()
    served = [
        model
        for model in LanguageModel.objects.for_key(api_key.pk if api_key else None).filter(is_refused=False)
        if epochs.route_problem(model, now) is None
    ]
    return JsonResponse({"object": "list", "data": [_entry(model) for model in served]})


@openai_view
def model_detail(request: HttpRequest, name: str) -> HttpResponse:
    require_method(request, "GET")
    model = chats.find_model(name, authenticate_api_key(request))
    problem = epochs.route_problem(model, timezone.now())
    if problem:
        raise ApiError(404, problem, code="model_not_found", param="model")
    return JsonResponse(_entry(model))


@openai_view
def unknown(request: HttpRequest, path: str = "") -> HttpResponse:
    raise ApiError(404, f"Unknown request URL: {request.method} {request.path[:200]}", code="unknown_url")


def _entry(model: LanguageModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": int(model.created.timestamp()), "owned_by": "meshnet"}
