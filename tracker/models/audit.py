"""What operators did: who, what, to whom, why."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone


class AuditEntry(models.Model):
    """One action of one operator. Nothing changes or deletes it but its age."""

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="audit_entries"
    )
    actor_name = models.CharField("who", max_length=150, help_text="Kept when the user is deleted.")
    action = models.CharField(max_length=60, help_text="What, in a word.")
    kind = models.CharField(max_length=60, help_text="What kind of thing it was done to.")
    object_id = models.CharField(max_length=64, blank=True)
    target = models.CharField("to", max_length=200, help_text="Its name then.")
    reason = models.CharField("why", max_length=300, blank=True)
    details = models.JSONField(default=dict, blank=True, help_text="What changed, where that can be said.")
    address = models.GenericIPAddressField("from", null=True, blank=True)

    class Meta:
        ordering = ["-at", "-pk"]
        verbose_name = "operator's action"
        verbose_name_plural = "audit log entries"

    def __str__(self) -> str:
        return f"{self.actor_name}: {self.action} {self.target}"
