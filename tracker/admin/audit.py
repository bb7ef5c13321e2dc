"""The admin's table of what operators did. Nobody changes or deletes a row of it, superusers neither."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from tracker.admin.parts import ModelAdmin, ReadOnly
from tracker.models import AuditEntry


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnly, ModelAdmin):
    list_display = ("at", "actor_name", "action", "kind", "target", "reason", "address")
    list_filter = ("at", "action", "kind", "actor_name")
    list_display_links = ("at",)
    search_fields = ("actor_name", "action", "target", "object_id", "reason", "address")
    date_hierarchy = "at"
    fields = ("at", "actor_name", "action", "kind", "target", "object_id", "reason", "changes", "address")
    help_texts = {
        "at": "When, UTC.",
        "object_id": "Its number in the table of its kind.",
        "reason": "As whoever did it said.",
        "changes": "What changed: the new value, or the former one and the new one.",
        "address": "The address that the request came from. Empty: the site's own machine.",
    }

    def has_delete_permission(self, request: HttpRequest, entry: Any = None) -> bool:
        return False

    @admin.display(description="what changed")
    def changes(self, entry: AuditEntry) -> SafeString | str:
        if not entry.details:
            return "–"
        return format_html("<pre>{}</pre>", json.dumps(entry.details, indent=2, ensure_ascii=False))
