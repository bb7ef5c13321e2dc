"""The page that asks before something is done, for browsers without JavaScript: `/confirm?to=<path of the action>`.

Buttons stand in the live part of a page, which is one for everybody and so has no CSRF token. Where htmx doesn't take
them they lead here, and the form of this page has the token. By itself it changes nothing.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import Resolver404, ResolverMatch, resolve
from django.views.decorators.http import require_safe

from tracker.dashboard.actions import MAX_WHY_CHARS, where_from
from tracker.dashboard.pages import permissions_of

OURS = {"to", "why", "back"}  # of the query; the rest is the action's own


@require_safe
def confirm(request: HttpRequest) -> HttpResponse:
    to = request.GET.get("to", "")
    match = _action(to)
    if not request.user.is_authenticated:
        return redirect_to_login(request.get_full_path())
    if match.func.permission not in permissions_of(request.user):  # type: ignore[attr-defined]
        raise PermissionDenied("You may not do this: ask an admin of this site for a group.")
    told: dict[str, Any] = {
        "to": to,
        "asks": match.func.asks(**match.kwargs),  # type: ignore[attr-defined]
        "why": request.GET.get("why", "")[:MAX_WHY_CHARS],
        "fields": [(name, request.GET[name]) for name in request.GET if name not in OURS],
        "back": where_from(request),
    }
    response = render(request, "dashboard/confirm.html", told)
    response["Cache-Control"] = "no-store"
    return response


def _action(path: str) -> ResolverMatch:
    try:
        match = resolve(path)
    except Resolver404:
        raise Http404("There is nothing to be done there.") from None
    if not hasattr(match.func, "permission"):
        raise Http404("There is nothing to be done there.")
    return match
