"""What one process of the site does for all: which one, and until when."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q


class Lease(models.Model):
    """A duty that one process holds at a time. It ends by itself, so a process that dies hands it on."""

    name = models.CharField(max_length=40, unique=True)
    holder = models.CharField(max_length=64, help_text="Drawn by the process that holds it.")
    until = models.DateTimeField()

    def __str__(self) -> str:
        return self.name

    @classmethod
    def take(cls, name: str, holder: str, now: datetime, lasts: timedelta) -> bool:
        """Takes or renews it; False while another has it. One UPDATE decides."""
        free = Q(holder=holder) | Q(until__lte=now)
        if cls.objects.filter(free, name=name).update(holder=holder, until=now + lasts):
            return True
        _, is_new = cls.objects.get_or_create(name=name, defaults={"holder": holder, "until": now + lasts})
        return is_new
