"""A page of the dashboard: what it tells, whom, and how often it looks again. Its URL and the live socket show it.

The part of a page that changes is a template of its own, `dashboard/live/<name>.html`. It is rendered for everybody who
may see as much, so nothing in it may depend on who looks but what they may do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from tracker.groups import SEE_DASHBOARD

Context = dict[str, Any]
View = Callable[..., HttpResponse]

LIVE = "live"  # with it in the query only the part that changes comes


@dataclass(frozen=True, slots=True)
class Ask:
    """Who looks at a page, when, and with which parameters. Hashable: those who ask alike are shown one rendering."""

    now: datetime = field(compare=False)
    may: frozenset[str]  # permissions, as "tracker.change_node"; of somebody without a login none
    params: tuple[tuple[str, str], ...] = ()  # of the query
    args: tuple[tuple[str, Any], ...] = ()  # of the path

    @classmethod
    def of(cls, may: frozenset[str], params: QueryDict, args: Mapping[str, Any]) -> Ask:
        """Of a parameter that comes several times the last counts."""
        kept = {name: str(params[name]) for name in params if name != LIVE}
        return cls(timezone.now(), may, tuple(sorted(kept.items())), tuple(sorted(args.items())))

    def param(self, name: str, default: str = "") -> str:
        return dict(self.params).get(name, default)

    def arg(self, name: str) -> Any:
        return dict(self.args)[name]


@dataclass(frozen=True)
class Page:
    name: str  # of its URL, and of its templates
    title: str
    context: Callable[[Ask], Context]  # raises Http404
    permission: str = SEE_DASHBOARD
    is_public: bool = False  # DASHBOARD_PUBLIC opens it; what it then may tell its context sees in `ask.may`
    every_s: float = 1.0  # it is looked at again by the live socket
    is_live: bool = True  # else nothing on it changes by itself, and no socket watches it

    def is_open(self, may: frozenset[str]) -> bool:
        return self.permission in may or (self.is_public and settings.DASHBOARD_PUBLIC)

    def told(self, ask: Ask) -> Context:
        return {"may": may_in_words(ask.may), "now": ask.now, "page": self} | self.context(ask)

    def live(self, ask: Ask) -> str:
        """The part that changes, as HTML."""
        return render_to_string(f"dashboard/live/{self.name}.html", self.told(ask))

    @property
    def view(self) -> View:
        """It carries its page, so that the live socket finds it by the URL. Nothing can be posted to it, so no CSRF."""

        @csrf_exempt
        @require_safe
        def shown(request: HttpRequest, **args: Any) -> HttpResponse:
            may = permissions_of(request.user)
            if not self.is_open(may):
                if not request.user.is_authenticated:
                    return redirect_to_login(request.get_full_path())
                raise PermissionDenied(f"You may not see {self.title}: ask an admin of this site for a group.")
            ask = Ask.of(may, request.GET, args)
            if LIVE in request.GET:
                response = HttpResponse(self.live(ask))
            else:
                response = render(request, f"dashboard/{self.name}.html", self.told(ask))
            response["Cache-Control"] = "no-store"
            return response

        shown.page = self  # type: ignore[attr-defined]
        return shown


def permissions_of(user: Any) -> frozenset[str]:
    """A user that is logged out or was switched off has none."""
    return frozenset(user.get_all_permissions()) if user.is_authenticated and user.is_active else frozenset()


def may_in_words(may: frozenset[str]) -> Mapping[str, bool]:
    """For templates: {% if may.use_chat %}."""
    return {name.removeprefix("tracker."): True for name in may if name.startswith("tracker.")}
