"""Moves of nodes to other layers: proposed, decided on, carried out."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from tracker.models.languages import LanguageModel
from tracker.models.nodes import Node
from tracker.words import layers_in_words


class Move(models.Model):
    """A node that leaves the choice of its layers to the site would serve more with others."""

    class State(models.TextChoices):
        PROPOSED = "proposed"
        ACCEPTED = "accepted", "accepted: it drains first"
        LOADING = "loading", "loading: it has left its former layers"
        DONE = "done"
        DROPPED = "dropped"

    OPEN = (State.PROPOSED, State.ACCEPTED, State.LOADING)

    model = models.ForeignKey(LanguageModel, on_delete=models.CASCADE, related_name="moves")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="moves")
    from_start = models.PositiveIntegerField()
    from_end = models.PositiveIntegerField()
    to_start = models.PositiveIntegerField()
    to_end = models.PositiveIntegerField()
    gain = models.FloatField(help_text="What the mesh could serve after it over what it could before.")
    reason = models.CharField(max_length=500, help_text="Why, in words.")
    state = models.CharField(max_length=8, choices=State.choices, default=State.PROPOSED, db_index=True)
    decided_by = models.CharField(max_length=150, blank=True, help_text="Who accepted or dropped it.")
    outcome = models.CharField(max_length=300, blank=True, help_text="Why it was dropped, where it was.")
    created = models.DateTimeField(default=timezone.now, editable=False)
    changed = models.DateTimeField(default=timezone.now, editable=False, help_text="When its state last changed.")

    class Meta:
        ordering = ["-created"]
        constraints = [
            models.UniqueConstraint(
                fields=["node"],
                condition=models.Q(state__in=("proposed", "accepted", "loading")),
                name="one_open_move_per_node",
            )
        ]

    def __str__(self) -> str:
        return f"{self.node}: from {self.from_in_words} to {self.to_in_words}"

    @property
    def from_in_words(self) -> str:
        return layers_in_words(*self.origin)

    @property
    def to_in_words(self) -> str:
        return layers_in_words(*self.target)

    @property
    def origin(self) -> tuple[int, int]:
        return self.from_start, self.from_end

    @property
    def target(self) -> tuple[int, int]:
        return self.to_start, self.to_end
