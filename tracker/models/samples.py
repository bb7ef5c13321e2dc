"""How it went with each node, a sample a minute, for the lines on its page."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from tracker.models.nodes import Node


class NodeSample(models.Model):
    """Of the minute before `at`."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField(default=timezone.now, db_index=True)
    rtt_ms = models.FloatField(null=True, blank=True, help_text="Of the relay's pings to it.")
    hop_ms = models.FloatField(null=True, blank=True, help_text="Of a step through it, as heads saw it.")
    bytes_in = models.PositiveBigIntegerField(default=0, help_text="That the relay had from it.")
    bytes_out = models.PositiveBigIntegerField(default=0, help_text="That the relay sent to it.")
    sessions = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["node", "at"]
        indexes = [models.Index(fields=["node", "at"], name="samples_of_a_node")]

    def __str__(self) -> str:
        return f"{self.node}, {self.at:%H:%M}"
