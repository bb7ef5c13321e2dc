"""The admin's table of moves: what became of each. They are decided on the dashboard's page of placement."""

from __future__ import annotations

from django.contrib import admin

from tracker.admin.parts import ModelAdmin, ReadOnly
from tracker.models import Move


@admin.register(Move)
class MoveAdmin(ReadOnly, ModelAdmin):
    list_display = ("__str__", "model", "state", "gain", "decided_by", "outcome", "created", "changed")
    list_filter = ("state", "model", "created")
    list_select_related = ("model", "node")
    search_fields = ("node__name", "model__name", "reason", "decided_by", "outcome")
    help_texts = {
        "model": "Whose layers it is about.",
        "node": "Which moves.",
        "from_start": "The first layer that it held.",
        "from_end": "The layer after its last one.",
        "to_start": "The first layer that it is to hold.",
        "to_end": "The layer after that one's last.",
        "state": "How far it has come.",
        "created": "When it was proposed.",
    }
