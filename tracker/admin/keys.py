"""The admin's tables of credentials, and of what API keys have used."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from django.conf import settings
from django.contrib import admin, messages
from django.db.models import F, Field, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.forms import Field as FormField
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.text import capfirst

from tracker import audit, joining, tallies, usage
from tracker.admin.parts import ModelAdmin, ReadOnly, TabularInline, reason_of
from tracker.limits import LIMITS
from tracker.models import ApiKey, JoinToken, Usage
from tracker.models.keys import CredentialRow
from tracker.words import counted

SHOWN_DAYS = 31
SENT, MOST_SENT = "sent_forms", 20  # in the visitor's session: forms that have made something
_LIMITS = tuple(limit.name for limit in LIMITS)


class CredentialAdmin(ModelAdmin):
    """The secret is shown in the answer to the form that made it, and never again."""

    list_filter: ClassVar[tuple[str, ...]] = ("revoked",)
    search_fields = ("label", "key_id")
    actions = ("revoke",)
    readonly_fields = ("key_id", "created", "last_used")
    help_texts: ClassVar[dict[str, str]] = {
        "created": "When it was made.",
        "last_used": "When somebody last asked or joined with it.",
    }

    def save_model(self, request: HttpRequest, row: CredentialRow, form: Any, change: bool) -> None:
        if not change:
            row.new_credential = row.give_secret()
        super().save_model(request, row, form, change)

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Whoever loads the page with the secret again sends the form again: that makes no other one."""
        if request.method == "POST" and _form_of(request) in request.session.get(SENT, []):
            said = f"This form had made its {self.opts.verbose_name} already, and its secret was shown that once."
            self.message_user(request, f"{said} Nothing was made now.", messages.WARNING)
            return redirect(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        return super().add_view(request, form_url, extra_context)

    def response_add(
        self, request: HttpRequest, row: CredentialRow, post_url_continue: str | None = None
    ) -> HttpResponse:
        if sent := _form_of(request):
            request.session[SENT] = [*request.session.get(SENT, []), sent][-MOST_SENT:]
        secret = row.new_credential.text if row.new_credential else ""
        context = self.admin_site.each_context(request) | {
            "title": capfirst(f"{row._meta.verbose_name} made"),
            "opts": self.opts,
            "row": row,
            "secret": secret,
            "line": self.line_with(secret),
        }
        answer = TemplateResponse(request, "admin/tracker/secret_once.html", context)
        answer["Cache-Control"] = "no-store"
        return answer

    def line_with(self, secret: str) -> str:
        """How it is used, to be copied."""
        raise NotImplementedError

    @admin.action(description="Revoke selected ones", permissions=["change"])
    def revoke(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        revoked, refused = [], []
        for row in rows:
            if row.revoked:
                refused.append(f"{row} is revoked already.")
                continue
            type(row).objects.filter(pk=row.pk).update(revoked=True)
            audit.record(request, "revoke", row, reason_of(request))
            revoked.append(str(row))
        self.tell(request, [f"Revoked: {', '.join(revoked)}. They open nothing any more."] if revoked else [], refused)


def _form_of(request: HttpRequest) -> str:
    """Which form it came from: Django masks the token in each one that it shows with chance of its own."""
    token = request.POST.get("csrfmiddlewaretoken", "")
    return hashlib.sha256(token.encode()).hexdigest()[:32] if token else ""


@admin.register(JoinToken)
class JoinTokenAdmin(CredentialAdmin):
    list_display = ("key_id", "label", "state", "uses_left", "expires", "needs_approval", "created", "last_used")
    list_filter = ("revoked", "needs_approval")
    fields = ("key_id", "label", "uses_left", "expires", "needs_approval", "revoked", "created", "last_used")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """One that is good for everybody and for ever is what somebody asked for, by emptying these."""
        filled = {"uses_left": joining.USES, "expires": timezone.now() + joining.LASTS}
        return filled | super().get_changeform_initial_data(request)

    def line_with(self, secret: str) -> str:
        return joining.runnode_line(secret)

    @admin.display(description="state")
    def state(self, token: JoinToken) -> str:
        return token.refusal(timezone.now()) or "good"


class UsageInline(ReadOnly, TabularInline):
    """Of the last days; the table of its own has all."""

    model = Usage
    fields = ("day", "model_name", "requests", "failed", "prompt_tokens", "completion_tokens")
    readonly_fields = fields
    can_delete = False
    verbose_name_plural = f"usage of the last {SHOWN_DAYS} days"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(day__gte=usage.since(timezone.now(), SHOWN_DAYS))


@admin.register(ApiKey)
class ApiKeyAdmin(CredentialAdmin):
    list_display = ("key_id", "label", "state", "all_limits", "used_today", "expires", "created", "last_used")
    list_filter = ("revoked", "allowed_models")
    fieldsets = (
        (None, {"fields": ("key_id", "label", "revoked", "expires", "created", "last_used")}),
        ("Models", {"fields": ("allowed_models",)}),
        (
            "Limits",
            {"fields": _LIMITS, "description": "All that are set hold. A request that has no room is answered 429."},
        ),
    )
    filter_horizontal = ("allowed_models",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """With what each has used today: joined instead, a filter by models would count it several times."""
        of_today = Usage.objects.filter(api_key=OuterRef("pk"), day=tallies.day_of(timezone.now()))

        def summed(number: Any) -> Any:
            sums = of_today.order_by().values("api_key").annotate(total=Sum(number)).values("total")
            return Coalesce(Subquery(sums), 0)

        tokens = summed(F("prompt_tokens") + F("completion_tokens"))
        keys: QuerySet[Any] = super().get_queryset(request)
        keys = keys.annotate(requests_today=summed("requests"), tokens_today=tokens)
        return keys

    def get_inlines(self, request: HttpRequest, key: ApiKey | None) -> list[Any]:
        return [UsageInline] if key else []

    def formfield_for_dbfield(self, db_field: Field[Any, Any], request: HttpRequest, **kwargs: Any) -> FormField | None:
        least = {"min_value": 1} if db_field.name in _LIMITS else {}
        return super().formfield_for_dbfield(db_field, request, **least, **kwargs)

    def line_with(self, secret: str) -> str:
        return f'curl {settings.PUBLIC_URL}/v1/models -H "Authorization: Bearer {secret}"'

    @admin.display(description="state")
    def state(self, key: ApiKey) -> str:
        return key.refusal(timezone.now()) or "good"

    @admin.display(description="limits")
    def all_limits(self, key: ApiKey) -> str:
        return key.limits_in_words()

    @admin.display(description="used today (UTC)")
    def used_today(self, key: ApiKey) -> str:
        told: Any = key  # with what get_queryset adds
        return f"{counted(told.requests_today, 'request')}, {counted(told.tokens_today, 'token')}"
