"""What was used with each key and served by each node, a day in a row."""

from __future__ import annotations

from django.db import models

from tracker.models.keys import ApiKey, JoinToken
from tracker.models.nodes import Node


class Usage(models.Model):
    """What was asked with a key on one day (UTC). Without a key: where none is required."""

    api_key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.CASCADE, related_name="usage")
    day = models.DateField()
    model_name = models.CharField("model", max_length=200)
    requests = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0, help_text="Of the requests, those that ended with an error.")
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-day", "api_key", "model_name"]
        verbose_name_plural = "usage"
        constraints = [
            models.UniqueConstraint(fields=["api_key", "day", "model_name"], name="one_usage_per_day"),
            models.UniqueConstraint(
                fields=["day", "model_name"], condition=models.Q(api_key=None), name="one_usage_without_key_per_day"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.api_key or 'no key'}, {self.model_name}, {self.day}"


class Contribution(models.Model):
    """What a node served on one day (UTC), as the heads of its sessions told it. Its owner is who enrolled it."""

    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="contributions")
    node_name = models.CharField("node", max_length=64, help_text="Kept when the node is deleted.")
    owner = models.ForeignKey(JoinToken, null=True, blank=True, on_delete=models.SET_NULL, related_name="contributions")
    owner_label = models.CharField("owner", max_length=100, blank=True, help_text="Kept when the token is deleted.")
    day = models.DateField(db_index=True)
    model_name = models.CharField("model", max_length=200)
    sessions = models.PositiveIntegerField(default=0)
    tokens = models.PositiveBigIntegerField(default=0)
    token_layers = models.PositiveBigIntegerField(
        default=0, help_text="Tokens times the layers that they went through."
    )

    class Meta:
        ordering = ["-day", "node_name", "model_name"]
        constraints = [
            models.UniqueConstraint(
                fields=["node_name", "owner", "day", "model_name"], name="one_contribution_per_day"
            ),
            models.UniqueConstraint(
                fields=["node_name", "day", "model_name"],
                condition=models.Q(owner=None),
                name="one_contribution_without_owner_per_day",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node_name}, {self.model_name}, {self.day}"
