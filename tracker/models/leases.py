"""What one process of the site does for all: which one, and until when."""

from __future__ import annotations

from django.db import models


class Lease(models.Model):
    """A duty that one process holds at a time. It ends by itself, so a process that dies hands it on."""

    name = models.CharField(max_length=40, unique=True)
    holder = models.CharField(max_length=64, help_text="Drawn by the process that holds it.")
    until = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
