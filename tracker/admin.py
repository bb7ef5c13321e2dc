"""The operator's side: who may join, who works, who may ask, and what became of it."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from relay import presence
from relay.auth import forget
from tracker import accusations, contributions, epochs
from tracker import key_admin as key_admin  # registers its tables
from tracker.admin_parts import ModelAdmin, ReadOnly, TabularInline, listing
from tracker.models import ApiKey, ChatSession, Contribution, Failover, LanguageModel, Node, SessionHop, Shard
from tracker.words import layers_in_words


class ShardInline(ReadOnly, TabularInline):
    model = Shard
    can_delete = False


@admin.register(Node)
class NodeAdmin(ModelAdmin):
    list_display = ("name", "standing", "shard_layers", "model", "reach", "last_seen")
    list_filter = ("status", "duty", "model", "uses_relay")
    list_select_related = ("model", "shard")
    search_fields = ("name", "peer_id", "address", "endpoint", "model__name")
    actions = ("approve", "pause", "drain", "resume", "reset_breaker", "revoke")
    inlines = (ShardInline,)
    fields = (
        ("name", "standing", "duty"),
        ("breaker_until", "breaker_openings", "breaker_reason", "cleared"),
        ("model", "peer_id", "key_id", "joined_with"),
        ("uses_relay", "endpoint", "endpoint_address", "endpoint_proved_until", "endpoint_error", "address"),
        ("version", "device", "dtype", "weights", "threads", "memory_bytes", "ms_per_layer"),
        ("state", "done_bytes", "total_bytes", "last_seen", "lease_until", "created"),
        ("sessions", "cached_tokens", "reserved_tokens", "max_cached_tokens"),
    )

    def get_readonly_fields(self, request: HttpRequest, node: Node | None = None) -> list[str]:
        """All but the name: nodes say the rest, and the status is changed by the actions, which check and tell."""
        return [name for row in self.fields for name in row if name != "name"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # nodes enrol themselves with a join token

    @admin.display(description="status", ordering="status")
    def standing(self, node: Node) -> str:
        return str(node.standing(timezone.now(), is_present=presence.is_present(node.peer_id)))

    @admin.display(description="layers", ordering="shard__start_layer")
    def shard_layers(self, node: Node) -> str:
        shard = getattr(node, "shard", None)
        return layers_in_words(shard.start_layer, shard.end_layer) if shard else "none"

    @admin.display(description="path of reach")
    def reach(self, node: Node) -> str:
        paths = ["relay"] if node.uses_relay else []
        if node.endpoint:
            is_proved = node.is_endpoint_proved(timezone.now())
            paths.append(f"{node.endpoint} ({'proved' if is_proved else node.endpoint_error or 'not proved yet'})")
        return ", ".join(paths) or "none"

    @admin.action(description="Approve selected nodes")
    def approve(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        approved = []
        for node in nodes.select_related("model"):
            try:
                node.approve()
                approved.append(node.name)
            except ValidationError as error:
                self.message_user(request, error.messages[0], messages.ERROR)
        self._say(request, "Approved", approved, "They may connect to the relay now.")

    @admin.action(description="Pause selected nodes: new sessions go elsewhere, theirs finish")
    def pause(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._give_duty(request, nodes, Node.Duty.PAUSED, "Paused", "New sessions go elsewhere; theirs finish.")

    @admin.action(description="Drain selected nodes: new sessions go elsewhere, theirs move away")
    def drain(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        then = "New sessions go elsewhere; theirs move to nodes with the same layers, or finish where there are none."
        self._give_duty(request, nodes, Node.Duty.DRAINING, "Draining", then)

    @admin.action(description="Resume selected nodes: they get sessions again")
    def resume(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._give_duty(request, nodes, Node.Duty.WORKS, "Resumed", "They get sessions again.")

    @admin.action(description="Use selected nodes again that were left out after failures")
    def reset_breaker(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        names = [node.name for node in nodes if node.breaker_openings or node.breaker_until]
        accusations.forgive(nodes, timezone.now())
        self._say(request, "Not left out any more", names, "What failed before is forgotten.")
        if not names:
            self.message_user(request, "None of them was left out.", messages.INFO)

    @admin.action(description="Revoke the keys of selected nodes")
    def revoke(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        revoked = []
        for node in nodes:
            node.revoke()
            forget(node.peer_id)
            revoked.append(node.name)
        self._say(request, "Revoked", revoked, "They are disconnected, and their keys open nothing any more.")

    def delete_model(self, request: HttpRequest, node: Node) -> None:
        super().delete_model(request, node)
        forget(node.peer_id)

    def delete_queryset(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        peer_ids = list(nodes.values_list("peer_id", flat=True))
        super().delete_queryset(request, nodes)
        for peer_id in peer_ids:
            forget(peer_id)

    def _give_duty(self, request: HttpRequest, nodes: QuerySet[Node], duty: Node.Duty, done: str, then: str) -> None:
        names = [node.name for node in nodes]
        nodes.update(duty=duty)  # they hear of it with their next heartbeat
        self._say(request, done, names, then)

    def _say(self, request: HttpRequest, done: str, names: list[str], then: str) -> None:
        if names:
            self.message_user(request, f"{done}: {', '.join(names)}. {then}", messages.SUCCESS)


@admin.register(LanguageModel)
class LanguageModelAdmin(ModelAdmin):
    list_display = ("name", "route", "num_layers", "wire_dtype", "prefill_chunk_tokens", "context_length")
    search_fields = ("name", "fingerprint")

    @admin.display(description="route")
    def route(self, model: LanguageModel) -> str:
        return epochs.route_problem(model, timezone.now()) or "complete"

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> tuple[Any, Any, Any, list[Any]]:
        """A key that names models and loses all of them would be one that names none, and open every model."""
        deleted, counts, lacking, protected = super().get_deleted_objects(objs, request)
        pks = [model.pk for model in objs]
        others = ApiKey.allowed_models.through._default_manager.exclude(languagemodel__in=pks)
        widened = ApiKey.objects.filter(allowed_models__in=pks).exclude(pk__in=others.values("apikey")).distinct()
        return (
            deleted,
            counts,
            lacking,
            [*protected, *(f"API key {key}, which names no other model" for key in widened)],
        )


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
        "hops__node_name",
        "failovers__code",
    )
    exclude = ("session_id",)  # a secret; short_id stands for it
    inlines = (SessionHopInline, FailoverInline)

    def get_search_results(
        self, request: HttpRequest, sessions: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """SQLite keeps JSON as text in which letters beyond ASCII are written as numbers."""
        found, may_repeat = super().get_search_results(request, sessions, search_term)
        written = json.dumps(search_term)[1:-1]
        return (found if written == search_term else found | sessions.filter(metadata__icontains=written)), may_repeat

    @admin.display(description="state", ordering="state")
    def current_state(self, session: ChatSession) -> str:
        return session.state_at(timezone.now())


@admin.register(Contribution)
class ContributionAdmin(ReadOnly, ModelAdmin):
    """Above the rows stand the sums of those that the filters leave, by owner and by node."""

    list_display = ("day", "node_name", "owner_label", "model_name", "sessions", "tokens", "token_layers")
    list_filter = (("day", admin.DateFieldListFilter), "model_name", "owner_label", "node_name")
    date_hierarchy = "day"
    search_fields = ("node_name", "owner_label", "model_name")
    list_per_page = 100

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        page = super().changelist_view(request, extra_context)
        if told := listing(page):
            rows, by = told["cl"].queryset, {"owner": "owner_label", "node": "node_name"}
            told["totals"] = {who: contributions.totals(rows, field) for who, field in by.items()}
        return page
