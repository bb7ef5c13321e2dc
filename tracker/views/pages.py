"""The pages for people: what runs, and the way each answer took. They refresh themselves, fetching their live part.

Nothing here can be posted, so no CSRF: who tries gets 405.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET

from tracker import gate, stories
from tracker.auth import bearer, why_refused
from tracker.errors import ApiError
from tracker.models import ApiKey, ChatSession, Node
from tracker.models.keys import find_by_credential
from tracker.views.responses import openai_error


@csrf_exempt
@require_GET
@login_required
def session_list(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    context: dict[str, Any] = {
        "models": stories.model_stories(now),
        "sessions": stories.recent_sessions(now),
        "has_nodes": Node.objects.exists(),
        "public_url": settings.PUBLIC_URL,
    }
    return _page(request, "session_list", context)


@csrf_exempt
@require_GET
@login_required
def session_list_json(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    return JsonResponse({"models": stories.model_stories(now), "sessions": stories.recent_sessions(now)})


@csrf_exempt
@require_GET
@login_required
def session_detail(request: HttpRequest, completion_id: str, choice: int = 0) -> HttpResponse:
    session = get_object_or_404(stories.sessions_with_hops(), completion_id=completion_id, choice=choice)
    context = {"session": stories.whole_story(session, timezone.now()), "metadata": list(session.metadata.items())}
    return _page(request, "session_detail", context)


@csrf_exempt
@require_GET
def session_detail_json(request: HttpRequest, completion_id: str, choice: int = 0) -> HttpResponse:
    """For people who are logged in, and for the API key that asked. Programs get errors that they can read."""
    session = stories.sessions_with_hops().filter(completion_id=completion_id, choice=choice).first()
    try:
        if not request.user.is_authenticated:
            if not bearer(request):
                return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
            key = _key_that_asks(request)
            session = session if _is_of(session, key) else None
        if session is None:
            message = "There is no session of this id here, or another API key asked for it."
            raise ApiError(404, message, code="unknown_url")
    except ApiError as error:
        return openai_error(error)
    return JsonResponse(stories.whole_story(session, timezone.now()))


def _key_that_asks(request: HttpRequest) -> ApiKey:
    """Raises ApiError 401 or 429."""
    text = bearer(request)
    gate.check(request, text)
    key: ApiKey | None = find_by_credential(ApiKey.objects.all(), text)
    refusal = key.refusal(timezone.now()) if key else None
    if key is None or refusal:
        gate.failed(request, text)
        raise ApiError(401, why_refused(text, refusal), code="invalid_api_key")
    return key


def _is_of(session: ChatSession | None, key: ApiKey) -> bool:
    return session is not None and session.api_key_id == key.pk


def _page(request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
    """The whole page, or with ?live only the part that changes."""
    response = render(request, f"tracker/{'live_' if 'live' in request.GET else ''}{name}.html", context)
    response["Cache-Control"] = "no-store"
    return response
