"""What the tables of the admin have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline  # generic in the stubs only


class ReadOnly:
    """For rows that the system writes and people only read."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False


def listing(page: HttpResponse) -> dict[str, Any] | None:
    """What the template of a table's page is told, its rows under `cl`; None where the page leads elsewhere."""
    told: dict[str, Any] = getattr(page, "context_data", None) or {}
    return told if "cl" in told else None
