"""What people do from a page: a POST by somebody who may, written down, answered with the words for what happened.

    @action(OPERATE, asks=lambda pk: "Pause this node?")
    def pause(request: HttpRequest, why: str, pk: int) -> Done:
        node = get_object_or_404(Node, pk=pk)
        …
        return Done(f"{node} is paused: new sessions go elsewhere.", "pause", [node])

    <form method="get" action="{% url 'confirm' %}" hx-post="{% url 'node-pause' node.pk %}" hx-target="#notice">
      <button disabled hidden></button>  {# the form's first: so Enter in a field does nothing #}
      <label>Reason <input name="why" maxlength="300"></label>
      <button name="to" value="{% url 'node-pause' node.pk %}">Pause</button>
    </form>

The form's button stands in a page's live part, which has no CSRF token: base.html gives htmx one for all its requests.
Without JavaScript the form leads to a page that asks once more and has a token (dashboard.confirming); the answer is
then a redirect to where the visitor was, with the words as a message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from tracker import audit
from tracker.dashboard.pages import permissions_of
from tracker.words import one_line

MAX_WHY_CHARS = 300


class Refused(Exception):
    """It can't be done, in words that say why and what would help."""


@dataclass(frozen=True, slots=True)
class Done:
    said: str  # to who did it
    action: str = ""  # for the audit log; empty where what was called has written it down already
    targets: Sequence[Model] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    secret: str = ""  # shown this once, to be copied


Asks = Callable[..., str]  # (**arguments of the path): the question before it is done
Act = Callable[..., Done]  # (request, why, **arguments of the path); raises Refused or Http404
View = Callable[..., HttpResponse]


def _asks(**args: Any) -> str:
    return "Do this?"


def action(permission: str, asks: Asks = _asks) -> Callable[[Act], View]:
    def decorated(act: Act) -> View:
        @require_POST
        @functools.wraps(act)
        def view(request: HttpRequest, **args: Any) -> HttpResponse:
            if not request.user.is_authenticated:
                return _to_login(request)
            if permission not in permissions_of(request.user):
                return _told(request, Done("You may not do this: ask an admin of this site for a group."), status=403)
            why = one_line(request.POST.get("why", ""))[:MAX_WHY_CHARS]
            try:
                done = act(request, why, **args)
            except Refused as refused:
                return _told(request, Done(str(refused)), status=409)
            for target in done.targets:
                audit.record(request, done.action, target, why, **done.details)
            return _told(request, done)

        view.permission, view.asks = permission, asks  # type: ignore[attr-defined]
        return view

    return decorated


def _told(request: HttpRequest, done: Done, status: int = 200) -> HttpResponse:
    is_htmx = "HX-Request" in request.headers
    if is_htmx or done.secret or status == 403:
        template = "dashboard/parts/done.html" if is_htmx else "dashboard/done.html"
        response = render(request, template, {"done": done, "is_refused": status != 200}, status=status)
        response["Cache-Control"] = "no-store"
        return response
    messages.add_message(request, messages.SUCCESS if status == 200 else messages.ERROR, done.said)
    return redirect(where_from(request))


def _to_login(request: HttpRequest) -> HttpResponse:
    """With a way back to the page, not to what was posted."""
    login = redirect_to_login(where_from(request))
    if "HX-Request" not in request.headers:
        return login
    return HttpResponse(status=401, headers={"HX-Redirect": login["Location"]})


def where_from(request: HttpRequest) -> str:
    """The path of the page that the form was on, of this site alone."""
    page = request.POST.get("back") or request.headers.get("HX-Current-URL") or request.headers.get("Referer") or ""
    if not url_has_allowed_host_and_scheme(page, {request.get_host()}, require_https=request.is_secure()):
        return "/"
    parts = urlsplit(page)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return path if url_has_allowed_host_and_scheme(path, None) else "/"  # "//other.example" is no path
