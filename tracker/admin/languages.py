"""The admin's tables of models: what may be asked and joined with, and which copies of models nobody may bring."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from tracker import audit, epochs
from tracker.admin.parts import ModelAdmin, reason_of
from tracker.models import ApiKey, LanguageModel, Node, RefusedFingerprint


@admin.register(LanguageModel)
class LanguageModelAdmin(ModelAdmin):
    list_display = ("name", "route", "num_layers", "wire_dtype", "prefill_chunk_tokens", "context_length")
    list_filter = ("is_refused", "rebalancing")
    search_fields = ("name", "fingerprint")
    actions = ("refuse", "allow")
    fieldsets = (
        (None, {"fields": ("name", "is_refused", "refusal_reason")}),
        ("Chats", {"fields": ("context_length", "default_max_tokens", "deadline_s")}),
        ("Between nodes", {"fields": ("prefill_chunk_tokens", "wire_dtype", "rebalancing")}),
        (
            "What its nodes hold",
            {
                "fields": ("fingerprint", "num_layers", "hidden_size", "created"),
                "description": "The first approved node fixes what is empty here.",
            },
        ),
    )
    readonly_fields = ("created",)
    help_texts = {"created": "When it was named here first, by an operator or by a node."}

    def save_model(self, request: HttpRequest, model: LanguageModel, form: Any, change: bool) -> None:
        super().save_model(request, model, form, change)
        if model.refusal_reason and not model.is_refused:
            self.tell(
                request, [], [f"{model.name} isn't refused, though a reason says why: tick Refused if it should be."]
            )

    @admin.display(description="route")
    def route(self, model: LanguageModel) -> str:
        return model.refusal or epochs.route_problem(model, timezone.now()) or "complete"

    @admin.action(description="Refuse selected models: nobody asks or joins with them", permissions=["change"])
    def refuse(self, request: HttpRequest, models: QuerySet[LanguageModel]) -> None:
        then = "Nobody may ask them, and no node joins with them any more; what runs ends as it would have."
        self._set(request, models, "refuse", "Refused", then, is_refused=True, refusal_reason=reason_of(request))

    @admin.action(description="Allow selected models again", permissions=["change"])
    def allow(self, request: HttpRequest, models: QuerySet[LanguageModel]) -> None:
        then = "They may be asked and joined with."
        self._set(request, models, "allow", "Allowed", then, is_refused=False, refusal_reason="")

    def _set(
        self,
        request: HttpRequest,
        models: QuerySet[LanguageModel],
        action: str,
        did: str,
        then: str,
        *,
        is_refused: bool,
        refusal_reason: str,
    ) -> None:
        names, refused = [], []
        for model in models:
            if model.is_refused == is_refused:
                refused.append(f"{model.name} was {'refused' if is_refused else 'allowed'} already.")
                continue
            LanguageModel.objects.filter(pk=model.pk).update(is_refused=is_refused, refusal_reason=refusal_reason)
            audit.record(request, action, model, reason_of(request))
            names.append(model.name)
        self.tell(request, [f"{did}: {', '.join(names)}. {then}"] if names else [], refused)

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


@admin.register(RefusedFingerprint)
class RefusedFingerprintAdmin(ModelAdmin):
    list_display = ("fingerprint", "reason", "held_by", "created")
    search_fields = ("fingerprint", "reason")
    fields = ("fingerprint", "reason", "held_by", "created")
    readonly_fields = ("held_by", "created")
    help_texts = {
        "held_by": "Nodes that joined with it before. They stay until they register again; ban or pause them.",
        "created": "Since when no node joins with it.",
    }

    @admin.display(description="still held by")
    def held_by(self, refused: RefusedFingerprint) -> str:
        if not refused.pk:
            return "–"
        names = list(Node.objects.filter(model_facts__fingerprint=refused.fingerprint).values_list("name", flat=True))
        return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "nobody"
