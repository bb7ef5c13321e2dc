"""The admin's tables of people and of their groups. Nobody makes anybody mightier than they are themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q
from django.http import HttpRequest

from tracker.admin.parts import Audited, ReasonForm

ONLY_SUPERUSERS_GIVE = ("is_superuser", "is_staff", "user_permissions")
GROUPS_HELP = (
    "viewer: looks at everything on the dashboard. operator: runs the mesh from there and from here, and chats. "
    "admin: all that an operator may, and API keys and users."
)


if TYPE_CHECKING:
    _UserAdmin = UserAdmin[User]
else:
    _UserAdmin = UserAdmin  # generic in the stubs only


def outranks(user: Any, other: User) -> bool:
    """Whether the other may do something that this user may not: it is then not this user's to change."""
    if user.is_superuser:
        return False
    return other.is_superuser or not _given_to(other) <= user.get_all_permissions()


def _given_to(user: User) -> set[str]:
    """What they may do once they are switched on: Django says that somebody who is switched off may do nothing."""
    given = Permission.objects.filter(Q(user=user) | Q(group__user=user))
    return {f"{app}.{name}" for app, name in given.values_list("content_type__app_label", "codename")}


def _groups_of(user: Any) -> Any:
    """Those that this user may give: none with a permission that they lack themselves."""
    if user.is_superuser:
        return Group.objects.all()
    own = user.get_all_permissions()
    groups = Group.objects.prefetch_related("permissions__content_type")
    may_give = [group.pk for group in groups if _permissions_of(group) <= own]
    return Group.objects.filter(pk__in=may_give)


def _permissions_of(group: Group) -> set[str]:
    return {f"{one.content_type.app_label}.{one.codename}" for one in group.permissions.all()}


class MeshnetUserAdmin(Audited, _UserAdmin):
    action_form = ReasonForm
    list_display = ("username", "email", "all_groups", "is_active", "is_superuser", "last_login")
    list_filter = ("is_active", "is_superuser", "groups")
    readonly_fields = ("last_login", "date_joined")
    fieldsets = (
        (None, {"fields": ("username", "password", "is_active")}),
        ("What they may do", {"fields": ("groups", "is_superuser", "is_staff", "user_permissions")}),
        ("About them", {"fields": ("first_name", "last_name", "email", "last_login", "date_joined")}),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "usable_password", "password1", "password2", "groups")}),
    )
    help_texts = {
        "groups": GROUPS_HELP,
        "is_superuser": "May do everything, without any group.",
        "is_staff": "Lets them into this admin without a group that does; operators and admins don't need it.",
        "user_permissions": "Beside those of their groups. Groups are easier to look through.",
        "is_active": "Switch it off instead of deleting somebody: nothing is open to them any more.",
        "first_name": "For people to read.",
        "last_name": "For people to read.",
        "email": "For people to read; the site sends no mail.",
        "last_login": "When they last logged in.",
        "date_joined": "When they were added here.",
    }

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change=change, **{"help_texts": self.help_texts} | kwargs)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("groups")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        fields = tuple(super().get_readonly_fields(request, obj))
        return fields if request.user.is_superuser else (*fields, *ONLY_SUPERUSERS_GIVE)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and not (obj and outranks(request.user, obj))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_oneself = obj is not None and obj.pk == request.user.pk
        may = super().has_delete_permission(request, obj) and not is_oneself
        return may and not (obj and outranks(request.user, obj))

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "groups":
            kwargs["queryset"] = _groups_of(request.user)
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    @admin.display(description="groups")
    def all_groups(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all())


class MeshnetGroupAdmin(Audited, GroupAdmin):
    """Its permissions are what the site's own groups have; who changes them gives power to all in them."""

    action_form = ReasonForm


admin.site.unregister((User, Group))
admin.site.register(User, MeshnetUserAdmin)
admin.site.register(Group, MeshnetGroupAdmin)
