"""Sessions as JSON: for people who may see the dashboard, and each for the API key that asked for it.

Nothing here can be posted, so no CSRF: who tries gets 405.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET

from tracker import gate, stories
from tracker.auth import bearer, why_refused
from tracker.dashboard.pages import permissions_of
from tracker.errors import ApiError
from tracker.groups import SEE_DASHBOARD
from tracker.models import ApiKey, ChatSession
from tracker.models.keys import find_by_credential
from tracker.views.responses import openai_error


@csrf_exempt
@require_GET
def listed(request: HttpRequest) -> HttpResponse:
    if not request.user.is_authenticated:
        return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
    _check_may_see(request)
    now = timezone.now()
    return JsonResponse({"models": stories.model_stories(now), "sessions": stories.recent_sessions(now)})


@csrf_exempt
@require_GET
def one(request: HttpRequest, completion_id: str, choice: int = 0) -> HttpResponse:
    """Programs get errors that they can read."""
    session = stories.sessions_with_hops().filter(completion_id=completion_id, choice=choice).first()
    try:
        if bearer(request):
            key = _key_that_asks(request)
            session = session if _is_of(session, key) else None
        elif not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
        else:
            _check_may_see(request)
        if session is None:
            message = "There is no session of this id here, or another API key asked for it."
            raise ApiError(404, message, code="unknown_url")
    except ApiError as error:
        return openai_error(error)
    return JsonResponse(stories.whole_story(session, timezone.now()))


def _check_may_see(request: HttpRequest) -> None:
    if SEE_DASHBOARD not in permissions_of(request.user):
        raise PermissionDenied("You may not see sessions: ask an admin of this site for a group.")


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
