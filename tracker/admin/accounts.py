"""The admin's tables of what was used with each key and served by each node, with the sums of what is listed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse

from tracker import contributions, usage
from tracker.admin.parts import ModelAdmin, ReadOnly, listing
from tracker.models import Contribution, Usage
from tracker.words import counted


@admin.register(Usage)
class UsageAdmin(ReadOnly, ModelAdmin):
    list_display = ("day", "api_key", "model_name", "requests", "failed", "prompt_tokens", "completion_tokens")
    list_filter = ("day", "model_name", "api_key")
    list_select_related = ("api_key",)
    list_display_links = None
    search_fields = ("api_key__label", "api_key__key_id", "model_name")
    date_hierarchy = "day"
    help_texts = {
        "api_key": "That it was asked with. Empty: where none is required, or from the chat page.",
        "day": "In UTC.",
        "model_name": "That was asked.",
        "requests": "That ended on this day, well or not.",
        "prompt_tokens": "Of all these requests together.",
        "completion_tokens": "Of all these requests together.",
    }

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """With the sums of all that is listed, on all of its pages."""
        answer = super().changelist_view(request, extra_context)
        if told := listing(answer):
            sums = usage.totals(told["cl"].queryset)
            requests, failed = counted(sums["requests"], "request"), sums["failed"]
            tokens = f"{sums['prompt_tokens']} tokens of prompts and {sums['completion_tokens']} of answers"
            told["title"] = f"Usage: {requests} ({failed} failed), {tokens}"
        return answer


@admin.register(Contribution)
class ContributionAdmin(ReadOnly, ModelAdmin):
    """Above the rows stand the sums of those that the filters leave, by owner and by node."""

    list_display = ("day", "node_name", "owner_label", "model_name", "sessions", "tokens", "token_layers")
    list_filter = (("day", admin.DateFieldListFilter), "model_name", "owner_label")  # nodes are many: they are searched
    date_hierarchy = "day"
    search_fields = ("node_name", "owner_label", "model_name")
    list_per_page = 100
    help_texts = {
        "node": "That served. Empty: it was deleted.",
        "owner": "The join token that it was enrolled with. Empty: it was deleted.",
        "day": "In UTC.",
        "model_name": "That was served.",
        "sessions": "That it had a part in.",
        "tokens": "Of prompts and answers that went through it.",
    }

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        page = super().changelist_view(request, extra_context)
        if told := listing(page):
            rows, by = told["cl"].queryset, {"owner": "owner_label", "node": "node_name"}
            told["totals"] = {who: contributions.totals(rows, field) for who, field in by.items()}
        return page
