"""What the tables of the admin have in common: each change is written down, and each field says what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.widgets import AdminSplitDateTime
from django.db.models import CharField, DateTimeField, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst

from tracker import audit
from tracker.words import one_line

MAX_REASON_CHARS = 300  # as the column of the audit log
NEVER_TOLD = {"password", "password1", "password2", "usable_password"}

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
else:
    _ModelAdmin, TabularInline = admin.ModelAdmin, admin.TabularInline  # generic in the stubs only


class ReasonForm(ActionForm):
    """Beside the choice of an action: why. It stands in the audit log."""

    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON_CHARS,
        label="Reason:",
        widget=forms.TextInput(attrs={"placeholder": "why, for the audit log", "size": 28}),
    )


class Audited(_ModelAdmin):
    """Whatever is added, changed or deleted here is written down, whoever does it."""

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> list[dict[str, Any]]:
        request.changes = changes_of(form)  # type: ignore[attr-defined]
        return super().construct_change_message(request, form, formsets, add)

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        audit.record(request, "add", obj, **getattr(request, "changes", {}))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        changes = getattr(request, "changes", {})
        audit.record(request, "set password" if "password" in changes else "change", obj, **changes)
        return super().log_change(request, obj, message)

    def log_deletions(self, request: HttpRequest, queryset: Iterable[Model]) -> Any:
        rows = list(queryset)
        for row in rows:
            audit.record(request, "delete", row, reason_of(request))
        return super().log_deletions(request, rows)  # type: ignore[arg-type]


class LabelledDateTime(AdminSplitDateTime):
    """Two fields, of which Django names the pair alone."""

    def __init__(self, attrs: Any = None) -> None:
        super().__init__(attrs)
        for field, name in zip(self.widgets, ("Date", "Time"), strict=True):
            field.attrs["aria-label"] = name


class Line(forms.CharField):
    """A browser sends no more than one line of it; others may."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        return one_line(text) if isinstance(text, str) else text


class ModelAdmin(Audited):
    help_texts: ClassVar[dict[str, str]] = {}  # of what is no column, or says nothing of itself
    action_form = ReasonForm
    formfield_overrides = {
        CharField: {"form_class": Line},
        DateTimeField: {"form_class": forms.SplitDateTimeField, "widget": LabelledDateTime},
    }
    list_per_page = 50
    show_full_result_count = False  # one query less for each page of a long table

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change=change, **{"help_texts": self.help_texts} | kwargs)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        title = {"title": capfirst(str(self.opts.verbose_name_plural))}
        return super().changelist_view(request, title | (extra_context or {}))

    def tell(self, request: HttpRequest, sentences: Iterable[str], refused: Iterable[str] = ()) -> None:
        """What was done, and to whom not."""
        for sentence in sentences:
            self.message_user(request, sentence, messages.SUCCESS)
        for sentence in refused:
            self.message_user(request, sentence, messages.WARNING)


class ReadOnly:
    """For rows that the system writes and people only read."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False


def reason_of(request: HttpRequest) -> str:
    """As it was typed beside the action, in one line."""
    return one_line(request.POST.get("reason", ""))[:MAX_REASON_CHARS]


def changes_of(form: Any) -> dict[str, Any]:
    """Of each field that was changed its new value, and the one before it where there was one; no secret."""
    told: dict[str, Any] = {}
    for name in form.changed_data:
        if name in NEVER_TOLD:
            told["password"] = "not told"
            continue
        before = form.initial.get(name)
        now = form.cleaned_data.get(name)
        told[name] = _plain(now) if before in (None, "", []) else [_plain(before), _plain(now)]
    return told


def _plain(value: Any) -> Any:
    """As JSON has it: rows by their names."""
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, QuerySet | list | tuple | set):
        return [str(one) for one in value]
    return str(value)[:200]


def listing(page: HttpResponse) -> dict[str, Any] | None:
    """What the template of a table's page is told, its rows under `cl`; None where the page leads elsewhere."""
    told: dict[str, Any] = getattr(page, "context_data", None) or {}
    return told if "cl" in told else None
