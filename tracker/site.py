"""The admin as Meshnet has it: Django's, for operators too, with the relay's page among the tables."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils import timezone

from tracker.forms import LoginForm
from tracker.groups import is_let_in


class MeshnetSite(admin.AdminSite):
    site_header = site_title = "Meshnet"
    index_title = "Nodes, keys and sessions"
    login_form = LoginForm

    def has_permission(self, request: HttpRequest) -> bool:
        """Operators and admins need no staff flag."""
        return is_let_in(request.user)

    def get_urls(self) -> list[URLResolver | URLPattern]:
        from tracker.views import relay  # here: its module asks this site for its context

        ours = [
            path("relay/", self.admin_view(relay.relay_page), name="relay"),
            path("relay/<str:peer_id>/disconnect/", self.admin_view(relay.disconnect), name="relay-disconnect"),
        ]
        return [*ours, *super().get_urls()]

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        tables = super().get_app_list(request, app_label)
        may_see = not app_label and self.has_permission(request) and request.user.has_perm("tracker.view_node")
        return [self._relay(), *tables] if may_see else tables

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """With the way to the first answer, until one has been given."""
        from tracker import joining  # here: models can't be loaded before this site is

        left: Any = ()
        if request.user.has_perm("tracker.add_jointoken"):
            left = joining.steps_left(timezone.now(), makes_keys=request.user.has_perm("tracker.add_apikey"))
        return super().index(request, {"steps": left} | (extra_context or {}))

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        """Of one's own."""
        from tracker import audit  # here: models can't be loaded before this site is

        answer = super().password_change(request, extra_context)
        if request.method == "POST" and answer.status_code == 302:
            audit.record(request, "set own password", request.user)  # type: ignore[arg-type]
        return answer

    def _relay(self) -> dict[str, Any]:
        """An entry like that of a table."""
        url = reverse("admin:relay", current_app=self.name)
        entry = {"name": "Connected peers", "object_name": "Peers", "admin_url": url, "view_only": True, "perms": {}}
        return {"name": "Relay", "app_label": "relay", "app_url": url, "has_module_perms": True, "models": [entry]}
