"""The admin's table of nodes: what each says of itself, what keeps it away, and all that an operator does with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from relay import presence
from relay.auth import forget
from tracker import bans, operating
from tracker.admin.parts import ModelAdmin, ReadOnly, ReasonForm, TabularInline, reason_of
from tracker.models import Node, Shard
from tracker.operating import Done
from tracker.words import layers_in_words


class ShardInline(ReadOnly, TabularInline):
    model = Shard
    can_delete = False


class NodeActionForm(ReasonForm):
    lasts = forms.ChoiceField(
        choices=[(name, words) for name, (words, _) in bans.PERIODS.items()],
        initial="1d",
        required=False,
        label="A ban lasts:",
    )


class StandsFilter(admin.SimpleListFilter):
    """What the actions are about, and no column says alone."""

    title, parameter_name = "what holds it back", "held"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("banned", "banned"), ("left_out", "left out after failures"), ("rotates", "gets a new key")]

    def queryset(self, request: HttpRequest, nodes: QuerySet[Node]) -> QuerySet[Node]:
        now = timezone.now()
        held: dict[str, dict[str, Any]] = {
            "banned": {"banned_until__gt": now},
            "left_out": {"breaker_until__gt": now},
            "rotates": {"rotates_key": True},
        }
        return nodes.filter(**held.get(str(self.value()), {}))


@admin.register(Node)
class NodeAdmin(ModelAdmin):
    list_display = ("name", "standing", "shard_layers", "model", "reach", "last_seen")
    list_filter = ("status", "duty", StandsFilter, "model", "uses_relay", "joined_with")
    list_select_related = ("model", "shard")
    search_fields = ("name", "peer_id", "address", "endpoint", "model__name")
    action_form = NodeActionForm
    actions = (
        *("approve", "pause", "drain", "resume", "use_again"),
        *("ban", "lift_ban", "rotate_key", "revoke"),
    )
    inlines = (ShardInline,)
    fieldsets = (
        (None, {"fields": ("name", "standing", "duty")}),
        ("Kept out", {"fields": ("banned_until", "ban_reason")}),
        ("Left out after failures", {"fields": ("breaker_until", "breaker_openings", "breaker_reason", "cleared")}),
        ("Who it is", {"fields": ("model", "fingerprint", "peer_id", "key", "joined_with", "created")}),
        (
            "How it is reached",
            {
                "fields": (
                    *("uses_relay", "round_trip", "endpoint", "endpoint_address"),
                    *("endpoint_proved_until", "endpoint_error", "address"),
                )
            },
        ),
        (
            "The machine",
            {"fields": ("version", "device", "dtype", "weights", "threads", "memory_bytes", "speed")},
        ),
        (
            "What it gives",
            {"fields": ("picks_layers", "budget_bytes", "layer_bytes", "head_bytes", "tail_bytes")},
        ),
        (
            "As it last said",
            {
                "fields": (
                    *("state", "done_bytes", "total_bytes", "last_seen", "lease_until"),
                    *("sessions", "cached_tokens", "reserved_tokens", "max_cached_tokens"),
                )
            },
        ),
    )
    help_texts = {
        "standing": "Whether it can be asked now, and what keeps it away where it can't.",
        "fingerprint": "Of its copy of the model: the same for equal copies.",
        "key": "Public part of its node key.",
        "joined_with": "The join token that it brought the first time: who has that is its owner.",
        "created": "When it joined.",
        "last_seen": "When it was last heard of.",
        "threads": "How many of them compute.",
        "memory_bytes": "Of the machine.",
        "round_trip": "Of the relay's pings to it.",
        "speed": "What computing one takes it, as it measured that.",
        "version": "Of the program it runs.",
    }

    def get_readonly_fields(self, request: HttpRequest, node: Node | None = None) -> list[str]:
        """All but the name: nodes say the rest, and the status is changed by the actions, which check and tell."""
        return [name for name in flatten_fieldsets(self.fieldsets) if name != "name"]

    def view_on_site(self, node: Node) -> str:
        return reverse("node-detail", args=[node.pk])

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

    @admin.display(description="round trip")
    def round_trip(self, node: Node) -> str:
        return _in_ms(node.rtt_ms)

    @admin.display(description="a layer, a token")
    def speed(self, node: Node) -> str:
        return _in_ms(node.ms_per_layer)

    @admin.display(description="fingerprint")
    def fingerprint(self, node: Node) -> str:
        return str(node.model_facts.get("fingerprint", "not told"))

    @admin.display(description="key")
    def key(self, node: Node) -> str:
        return f"{node.key_id}{': a new one comes with its next heartbeat' if node.rotates_key else ''}"

    @admin.action(description="Approve selected nodes", permissions=["change"])
    def approve(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._act(request, nodes, operating.approve)

    @admin.action(description="Pause selected nodes: new sessions go elsewhere, theirs finish", permissions=["change"])
    def pause(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._act(request, nodes, operating.pause)

    @admin.action(
        description="Drain selected nodes: new sessions go elsewhere, theirs move away", permissions=["change"]
    )
    def drain(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._act(request, nodes, operating.drain)

    @admin.action(description="Resume selected nodes: they get sessions again", permissions=["change"])
    def resume(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._act(request, nodes, operating.resume)

    @admin.action(description="Use selected nodes again that were left out after failures", permissions=["change"])
    def use_again(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._act(request, nodes, operating.use_again)

    @admin.action(description="Ban selected nodes for a time, with a reason", permissions=["change"])
    def ban(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        _, lasts = bans.PERIODS.get(request.POST.get("lasts", ""), bans.PERIODS["1d"])
        self._tell(request, operating.ban(request, nodes, reason_of(request), lasts))

    @admin.action(description="Lift the ban of selected nodes", permissions=["change"])
    def lift_ban(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._act(request, nodes, operating.lift_ban)

    @admin.action(description="Give selected nodes new keys, without an interruption", permissions=["change"])
    def rotate_key(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._act(request, nodes, operating.rotate_key)

    @admin.action(description="Revoke the keys of selected nodes: they are out for good", permissions=["change"])
    def revoke(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        self._act(request, nodes, operating.revoke)

    def delete_model(self, request: HttpRequest, node: Node) -> None:
        super().delete_model(request, node)
        forget(node.peer_id)

    def delete_queryset(self, request: HttpRequest, nodes: QuerySet[Node]) -> None:
        peer_ids = list(nodes.values_list("peer_id", flat=True))
        super().delete_queryset(request, nodes)
        for peer_id in peer_ids:
            forget(peer_id)

    def _act(
        self, request: HttpRequest, nodes: QuerySet[Node], act: Callable[[HttpRequest, QuerySet[Node], str], Done]
    ) -> None:
        self._tell(request, act(request, nodes, reason_of(request)))

    def _tell(self, request: HttpRequest, done: Done) -> None:
        self.tell(request, [str(done)] if done.names else [], done.refused)


def _in_ms(ms: float | None) -> str:
    return "–" if ms is None else f"{ms:.2f} ms"
