"""Generations, the routes each took and what it survived.

A row is written before the first byte of an answer, when its route changes, and after the last byte.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models
from django.db.models import QuerySet
from django.utils import timezone

from tracker.models.keys import ApiKey
from tracker.models.languages import LanguageModel
from tracker.models.nodes import Node
from tracker.words import layers_in_words

LOST_AFTER = timedelta(seconds=30)  # without news from the process that runs it


class ChatSessionQuerySet(QuerySet["ChatSession"]):
    def running(self, now: datetime) -> QuerySet[ChatSession]:
        """Without those whose process died and whose row still says so."""
        return self.filter(state=ChatSession.State.RUNNING, last_news__gt=now - LOST_AFTER)


class ChatSession(models.Model):
    class State(models.TextChoices):
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    session_id = models.CharField(
        max_length=32,
        unique=True,
        editable=False,
        help_text="Keys the nodes' caches. A secret: pages show 8 characters.",
    )
    completion_id = models.CharField(max_length=64, editable=False, help_text="As the client was told.")
    choice = models.PositiveSmallIntegerField(default=0, help_text="Which of the choices that the client asked for.")
    request_id = models.CharField(max_length=64, blank=True, db_index=True, help_text="As x-request-id said.")
    model = models.ForeignKey(LanguageModel, on_delete=models.CASCADE, related_name="chat_sessions")
    api_key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.SET_NULL, related_name="chat_sessions")
    user = models.CharField(max_length=512, blank=True, help_text="Whom the client asked for, in its own words.")
    metadata = models.JSONField(default=dict, blank=True, help_text="What the client wrote beside its request.")
    reserved_tokens = models.PositiveBigIntegerField(
        default=0, help_text="What it counts for in its key's limits while it runs."
    )
    state = models.CharField(max_length=9, choices=State.choices, default=State.RUNNING, db_index=True)
    is_streamed = models.BooleanField(default=False, help_text="The client asked for a stream.")
    seed = models.BigIntegerField(help_text="Of the sampling; drawn by the tracker when the client gave none.")
    max_tokens = models.PositiveIntegerField(default=0, help_text="Tokens that its tickets allow.")
    epoch = models.PositiveIntegerField(default=0, help_text="Number of its route; each failover raises it.")
    started = models.DateTimeField(db_index=True)
    deadline = models.DateTimeField(default=timezone.now, help_text="It has ended by then, one way or another.")
    last_news = models.DateTimeField(
        default=timezone.now, db_index=True, help_text="The process that runs it was alive then."
    )
    ended = models.DateTimeField(null=True, blank=True)
    finish_reason = models.CharField(max_length=20, blank=True)
    prompt_tokens = models.PositiveIntegerField(null=True, blank=True)
    completion_tokens = models.PositiveIntegerField(null=True, blank=True)
    drafted_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Guessed by the head beforehand.")
    accepted_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Of these, what the tail chose too.")
    ttft_ms = models.FloatField("TTFT in ms", null=True, blank=True, help_text="From the request to its first text.")
    last_token = models.DateTimeField(
        null=True, editable=False, help_text="When the last one had come, by the news of it while it runs."
    )
    error_code = models.CharField(max_length=60, blank=True)
    error_message = models.TextField(blank=True)
    error_details = models.TextField(
        blank=True, default="", help_text="In the words of the node or the site that noticed."
    )
    cancelled_by = models.CharField(
        max_length=150, blank=True, editable=False, help_text="Who asked for its end here; its process sees it."
    )

    objects = ChatSessionQuerySet.as_manager()

    class Meta:
        ordering = ["-started"]
        verbose_name = "session"
        permissions = [("cancel_chatsession", "Can cancel a session"), ("use_chat", "Can chat on the site's page")]
        constraints = [models.UniqueConstraint(fields=["completion_id", "choice"], name="one_session_per_choice")]
        indexes = [models.Index(fields=["api_key", "started"], name="sessions_of_a_key")]

    def __str__(self) -> str:
        return self.short_id

    def route(self) -> QuerySet[SessionHop]:
        """Its hops now, the head first."""
        return self.hops.filter(epoch=self.epoch).select_related("node")

    @property
    def short_id(self) -> str:
        return self.session_id[:8]

    def state_at(self, now: datetime) -> str:
        """Its state, where one that should have ended long ago is `lost`."""
        is_lost = self.state == self.State.RUNNING and self.last_news <= now - LOST_AFTER
        return "lost" if is_lost else self.state

    @property
    def duration_s(self) -> float | None:
        return max(0.0, (self.ended - self.started).total_seconds()) if self.ended else None

    @property
    def tokens_per_s(self) -> float | None:
        """Of the answer after its first text, until the last news where it runs."""
        if not self.completion_tokens or self.completion_tokens < 2 or self.ttft_ms is None:
            return None
        until = self.ended or self.last_news
        decoding_s = (until - self.started).total_seconds() - self.ttft_ms / 1000
        return (self.completion_tokens - 1) / decoding_s if decoding_s > 0 else None


class SessionHop(models.Model):
    """One element of a session's route in one epoch; what it took is known when the session has ended."""

    class Path(models.TextChoices):
        LOCAL = "local"
        RELAY = "relay"
        TUNNEL = "tunnel"
        DIRECT = "direct"

    session = models.ForeignKey(ChatSession, on_delete=models.CASCADE, related_name="hops")
    epoch = models.PositiveIntegerField(default=0, help_text="Of the route it is a part of.")
    position = models.PositiveSmallIntegerField(help_text="0 is the head.")
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="session_hops")
    node_name = models.CharField(max_length=64, help_text="Kept when the node is deleted.")
    start_layer = models.PositiveIntegerField()
    end_layer = models.PositiveIntegerField()
    path = models.CharField(max_length=6, choices=Path.choices, blank=True, help_text="How steps reached it.")
    steps = models.PositiveIntegerField(null=True, blank=True)
    tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Of prompt and answer that it worked.")
    ms_total = models.FloatField(null=True, blank=True, help_text="Time of all its steps, as the head saw it.")
    compute_ms = models.FloatField(null=True, blank=True, help_text="Of these, computing.")
    queue_ms = models.FloatField(null=True, blank=True, help_text="Of these, waiting for the engine.")
    compute_p50_ms = models.FloatField(null=True, blank=True, help_text="Computing, of half of its decode steps.")
    compute_p95_ms = models.FloatField(null=True, blank=True, help_text="Of 95 in 100.")
    network_p50_ms = models.FloatField(null=True, blank=True, help_text="What a step took beside both.")
    network_p95_ms = models.FloatField(null=True, blank=True, help_text="Of 95 in 100.")
    queue_p50_ms = models.FloatField(null=True, blank=True, help_text="Waiting for the engine.")
    queue_p95_ms = models.FloatField(null=True, blank=True, help_text="Of 95 in 100.")

    class Meta:
        ordering = ["session", "epoch", "position"]
        constraints = [models.UniqueConstraint(fields=["session", "epoch", "position"], name="one_hop_per_position")]

    def __str__(self) -> str:
        return f"{self.node_name}, {self.layers}"

    @property
    def layers(self) -> str:
        return layers_in_words(self.start_layer, self.end_layer)

    @property
    def ms_per_token(self) -> float | None:
        """Its time over the tokens of the answer, so that the hops of a session add up to its time per token."""
        tokens = self.session.completion_tokens
        return self.ms_total / tokens if tokens and self.ms_total is not None else None


class SessionSteps(models.Model):
    """The last steps of a session, for the picture of them on its page."""

    session = models.OneToOneField(ChatSession, on_delete=models.CASCADE, primary_key=True, related_name="last_steps")
    steps = models.JSONField(default=list, help_text="In order, as its head told them.")

    class Meta:
        verbose_name_plural = "session steps"

    def __str__(self) -> str:
        return f"steps of {self.session}"


class Failover(models.Model):
    """A session went on without one of its nodes: which, why, and what that took."""

    class Kind(models.TextChoices):
        HEAD = "head", "its head was lost"
        HOP = "hop", "a node after the head was lost"
        MOVE = "move", "a node is being drained"

    class Kept(models.TextChoices):
        ACTIVATIONS = "activations", "from activations that the head kept"
        TOKENS = "tokens", "from token ids, through the whole route"

    session = models.ForeignKey(ChatSession, on_delete=models.CASCADE, related_name="failovers")
    epoch = models.PositiveIntegerField(help_text="Of the route that it led to.")
    kind = models.CharField(max_length=4, choices=Kind.choices)
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="failovers")
    node_name = models.CharField(max_length=64, help_text="The node that was left. Kept when it is deleted.")
    start_layer = models.PositiveIntegerField()
    end_layer = models.PositiveIntegerField()
    reported_by = models.ForeignKey(
        Node,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="reports",
        help_text="Empty: the site saw it.",
    )
    code = models.CharField(max_length=60, help_text="What it was, in one word.")
    cause = models.CharField(max_length=500, blank=True, help_text="In the words of who noticed.")
    position = models.PositiveIntegerField(null=True, blank=True, help_text="Tokens of prompt and answer until then.")
    at = models.DateTimeField(db_index=True)
    resume_ms = models.FloatField(null=True, blank=True, help_text="From then to the next token.")
    kept = models.CharField(
        max_length=11, choices=Kept.choices, blank=True, help_text="What the new route was filled from."
    )
    replayed_tokens = models.PositiveIntegerField(null=True, blank=True)
    replay_compute_ms = models.FloatField(null=True, blank=True, help_text="Of resume_ms, computing the replay.")

    class Meta:
        ordering = ["session", "epoch"]
        constraints = [models.UniqueConstraint(fields=["session", "epoch"], name="one_failover_per_epoch")]

    def __str__(self) -> str:
        return f"{self.node_name}, {layers_in_words(self.start_layer, self.end_layer)}: {self.code}"
