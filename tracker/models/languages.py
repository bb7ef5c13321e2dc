"""The models users ask for. What makes two copies of one the same is fixed once, by the first approved node."""

from __future__ import annotations

from typing import Any

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Exists, Q, QuerySet
from django.utils import timezone

from relay.headers import DTYPE_BYTES, most_tokens

MAX_LAYERS = 1024
MODEL_NAME = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9._:/-]*\Z",
    "A model's name has letters, digits and . _ : / - and starts with one of the first.",
)


class LanguageModelQuerySet(QuerySet["LanguageModel"]):
    def for_key(self, key_id: int | None) -> LanguageModelQuerySet:
        """Those that may be asked with an API key; all where it names none, and where no key is required."""
        if key_id is None:
            return self
        named = LanguageModel.objects.filter(api_keys=key_id)
        return self.filter(Q(pk__in=named.values("pk")) | ~Exists(named))


class LanguageModel(models.Model):
    class Rebalancing(models.TextChoices):
        OFF = "off", "off"
        PROPOSE = "propose", "propose: somebody accepts a move, or not"
        AUTOMATIC = "automatic", "automatic"

    name = models.CharField(max_length=200, unique=True, validators=[MODEL_NAME], help_text="As users ask for it.")
    fingerprint = models.CharField(
        max_length=64,
        blank=True,
        help_text="The same for equal copies; nodes with another are refused. Empty: the first approved node fixes it.",
    )
    num_layers = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_LAYERS)],
        help_text="Transformer blocks.",
    )
    hidden_size = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Width of an activation."
    )
    context_length = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Tokens of prompt and answer together, at most.",
    )
    prefill_chunk_tokens = models.PositiveIntegerField(
        default=128,
        validators=[MinValueValidator(1), MaxValueValidator(65536)],
        help_text="A prompt goes through the nodes in steps of so many tokens, on every route the same.",
    )
    wire_dtype = models.CharField(
        max_length=10,
        choices=[(name, name) for name in DTYPE_BYTES],
        default="bfloat16",
        help_text="How activations travel between nodes. float32 doubles the bytes.",
    )
    default_max_tokens = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Tokens of an answer where the client names no number. Empty: 1024.",
    )
    deadline_s = models.PositiveIntegerField(
        "deadline in s",
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="The time one chat may take. Empty: the site's REQUEST_DEADLINE_S, which is also the most.",
    )
    is_refused = models.BooleanField(
        "refused", default=False, help_text="No node joins with it any more, and nobody may ask it."
    )
    refusal_reason = models.CharField(max_length=300, blank=True, help_text="Why; owners and users read it.")
    rebalancing = models.CharField(
        max_length=9,
        choices=Rebalancing.choices,
        default=Rebalancing.PROPOSE,
        help_text="Whether nodes that leave the choice of their layers to the site are moved where they serve more.",
    )
    layer_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, editable=False, help_text="Of one layer's weights, as they are."
    )
    head_bytes = models.PositiveBigIntegerField(null=True, blank=True, editable=False, help_text="Before the layers.")
    tail_bytes = models.PositiveBigIntegerField(null=True, blank=True, editable=False, help_text="After the layers.")

    created = models.DateTimeField(default=timezone.now, editable=False)

    objects = LanguageModelQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        verbose_name = "model"

    def __str__(self) -> str:
        return self.name

    @property
    def refusal(self) -> str | None:
        """That the operator refuses it, in words; None where it may be asked and joined with."""
        why = f": {self.refusal_reason}" if self.refusal_reason else ""
        return f"the model {self.name} is refused here by the operator{why}" if self.is_refused else None

    @property
    def fitting_chunk_tokens(self) -> int:
        """prefill_chunk_tokens, lowered where a step's activations wouldn't fit through the relay."""
        if not self.hidden_size:
            return self.prefill_chunk_tokens
        return max(1, min(self.prefill_chunk_tokens, most_tokens(self.hidden_size, self.wire_dtype)))

    def mismatch(self, facts: dict[str, Any]) -> str | None:
        """How a node's copy differs from this model, in words; None when it doesn't, or nothing is fixed yet."""
        if self.fingerprint and facts["fingerprint"] != self.fingerprint:
            theirs, ours = facts["fingerprint"][:12], self.fingerprint[:12]
            return f"its fingerprint is {theirs}…, that of {self.name} here is {ours}…: they are not the same weights"
        for name in ("num_layers", "hidden_size"):
            fixed = getattr(self, name)
            if fixed is not None and facts[name] != fixed:
                return f"its {name} is {facts[name]}, that of {self.name} here is {fixed}"
        return None

    def fix(self, facts: dict[str, Any]) -> None:
        """Takes from the first approved node's copy what nobody has fixed before."""
        sizes = ("layer_bytes", "head_bytes", "tail_bytes")
        names = ("fingerprint", "num_layers", "hidden_size", "context_length", *sizes)
        fields = [name for name in names if not getattr(self, name) and facts.get(name) is not None]
        for name in fields:
            setattr(self, name, facts[name])
        if fields:
            self.save(update_fields=fields)


class RefusedFingerprint(models.Model):
    """A copy of some model that no node may join with, whatever it calls it."""

    fingerprint = models.CharField(
        max_length=64,
        unique=True,
        validators=[RegexValidator(r"^[0-9a-f]{64}\Z", "A fingerprint has 64 digits of 0-9 and a-f.")],
        help_text="As the list of nodes or a model's page shows it: 64 hexadecimal digits.",
    )
    reason = models.CharField(max_length=300, blank=True, help_text="Why; owners of such nodes read it.")
    created = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["-created"]

    def __str__(self) -> str:
        return f"{self.fingerprint[:12]}…"

    @classmethod
    def refusal(cls, fingerprint: str) -> str | None:
        """That no node may hold this copy, in words that follow "its"; None where one may."""
        row = cls.objects.filter(fingerprint=fingerprint).first()
        if row is None:
            return None
        return f"fingerprint {row} is refused here by the operator{f': {row.reason}' if row.reason else ''}"
