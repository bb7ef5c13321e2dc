"""The admin's table of sessions: read-only, with the hops of each and what it went on without."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from tracker import operating
from tracker.admin.parts import ModelAdmin, ReadOnly, TabularInline, reason_of
from tracker.groups import CANCEL
from tracker.models import ChatSession, Failover, SessionHop
from tracker.words import layers_in_words


class SessionHopInline(ReadOnly, TabularInline):
    model = SessionHop
    fields = (
        "epoch",
        "position",
        "node_name",
        "layers",
        "path",
        "steps",
        "tokens",
        "ms_per_token",
        "compute_ms",
        "queue_ms",
        *("compute_p50_ms", "compute_p95_ms", "network_p50_ms", "network_p95_ms", "queue_p50_ms", "queue_p95_ms"),
    )
    readonly_fields = fields
    can_delete = False

    @admin.display(description="ms per token")
    def ms_per_token(self, hop: SessionHop) -> str:
        return "" if hop.ms_per_token is None else f"{hop.ms_per_token:.1f}"


class FailoverInline(ReadOnly, TabularInline):
    model = Failover
    fields = (
        *("epoch", "kind", "node_name", "layers", "code", "cause", "reported_by", "position", "at"),
        *("resume_ms", "kept", "replayed_tokens", "replay_compute_ms"),
    )
    readonly_fields = fields
    can_delete = False

    @admin.display(description="layers")
    def layers(self, failover: Failover) -> str:
        return layers_in_words(failover.start_layer, failover.end_layer)


@admin.register(ChatSession)
class ChatSessionAdmin(ReadOnly, ModelAdmin):
    list_display = (
        *("short_id", "model", "choice", "current_state", "api_key", "user", "started"),
        *("completion_tokens", "finish_reason"),
    )
    list_filter = ("state", "failovers__kind", "model", "started")
    list_select_related = ("model", "api_key")
    search_fields = (
        "completion_id",
        "request_id",
        "user",
        "metadata",
        "model__name",
        "api_key__label",
        "error_code",
    )
    exclude = ("session_id",)  # a secret; short_id stands for it
    inlines = (SessionHopInline, FailoverInline)
    actions = ("cancel",)
    help_texts = {
        "model": "That was asked.",
        "api_key": "That it was asked with. Empty: from the chat page, or where no key is required.",
        "state": "As it was last written. Of one whose process died: running, until it is found to be lost.",
        "started": "When it was asked for.",
        "ended": "When its last byte was sent, or nobody waited any more.",
        "finish_reason": "As the client was told: stop, length, tool_calls or content_filter.",
        "prompt_tokens": "As its head counted them.",
        "completion_tokens": "As its head counted them.",
        "error_code": "As the client was told. Empty: it ended well, or runs.",
        "error_message": "As the client was told.",
        "error_details": "As the node or the site that noticed it said it. Empty: the client was told all.",
    }

    def get_search_results(
        self, request: HttpRequest, sessions: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Also by the nodes that it went through and by what it lost: asked beside, since joined to the sessions each
        of these would come once for each of those."""
        found, may_repeat = super().get_search_results(request, sessions, search_term)
        if not search_term:
            return found, may_repeat
        hops = SessionHop.objects.filter(node_name__icontains=search_term).values("session")
        failovers = Failover.objects.filter(code__icontains=search_term).values("session")
        written = json.dumps(search_term)[1:-1]  # as SQLite keeps letters beyond ASCII
        beside = Q(pk__in=hops) | Q(pk__in=failovers) | Q(metadata__icontains=written)
        return found | sessions.filter(beside), may_repeat

    def view_on_site(self, session: ChatSession) -> str:
        return reverse("session-detail", args=[session.completion_id, session.choice])

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(CANCEL)

    @admin.action(description="Cancel selected sessions: their clients are told", permissions=["cancel"])
    def cancel(self, request: HttpRequest, sessions: QuerySet[ChatSession]) -> None:
        done = operating.cancel(request, sessions, reason_of(request))
        self.tell(request, [str(done)] if done.names else [], done.refused)

    @admin.display(description="state", ordering="state")
    def current_state(self, session: ChatSession) -> str:
        return session.state_at(timezone.now())
