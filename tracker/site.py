"""The admin as Meshnet has it: Django's, with the relay's page among the tables."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver, path, reverse

from tracker.forms import LoginForm
from tracker.views import relay


class MeshnetSite(admin.AdminSite):
    site_header = site_title = "Meshnet"
    index_title = "Nodes, keys and sessions"
    login_form = LoginForm

    def get_urls(self) -> list[URLResolver | URLPattern]:
        return [path("relay/", self.admin_view(relay.relay_page), name="relay"), *super().get_urls()]

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        tables = super().get_app_list(request, app_label)
        return tables if app_label or not self.has_permission(request) else [self._relay(), *tables]

    def _relay(self) -> dict[str, Any]:
        """An entry like that of a table."""
        url = reverse("admin:relay", current_app=self.name)
        entry = {"name": "Connected peers", "object_name": "Peers", "admin_url": url, "view_only": True, "perms": {}}
        return {"name": "Relay", "app_label": "relay", "app_url": url, "has_module_perms": True, "models": [entry]}
