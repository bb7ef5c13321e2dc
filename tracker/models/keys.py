"""Credentials of people and of machines that want to join, and the keys that sign tickets."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from tracker import credentials
from tracker.credentials import Credential, Kind
from tracker.limits import LIMITS, Limit
from tracker.models.languages import LanguageModel

_NOBODY = credentials.hash_secret("")  # compared with when no row has the key id, so that both answers take as long


def find_by_credential(rows: models.QuerySet[Any], text: str) -> Any | None:
    """The row that this credential proves to belong to its bearer, revoked or not; None for any other text."""
    given = credentials.parse(text)
    if given is None:
        return None
    row = rows.filter(key_id=given.key_id).first()
    proved = credentials.matches(given.secret, row.secret_hash if row else _NOBODY)
    return row if proved else None


class CredentialRow(models.Model):
    """What join tokens and API keys share: a public key id, the hash of a secret, a label, an end."""

    kind: ClassVar[Kind]
    new_credential: Credential | None = None  # of a row just made, until its secret has been shown

    key_id = models.CharField(max_length=64, unique=True, editable=False, help_text="The part before the dot. Public.")
    secret_hash = models.CharField(max_length=64, editable=False, help_text="SHA-256 of the part after the dot.")
    label = models.CharField(max_length=100, blank=True, help_text="For whom or for what it is; only people read it.")
    created = models.DateTimeField(default=timezone.now, editable=False)
    last_used = models.DateTimeField(null=True, blank=True, editable=False)
    revoked = models.BooleanField(default=False, help_text="A revoked one opens nothing any more.")

    class Meta:
        abstract = True
        ordering = ["-created"]

    def __str__(self) -> str:
        return f"{self.label} ({self.key_id})" if self.label else self.key_id

    def give_secret(self) -> Credential:
        """Makes a new secret and keeps its hash; the caller saves the row and shows the secret once."""
        credential = credentials.mint(self.kind)
        self.key_id, self.secret_hash = credential.key_id, credential.secret_hash
        return credential


class JoinToken(CredentialRow):
    kind = Kind.JOIN

    uses_left = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many nodes may still join with it. Empty: any number."
    )
    expires = models.DateTimeField(null=True, blank=True, help_text="After this moment it is refused. Empty: never.")
    needs_approval = models.BooleanField(
        default=False, help_text="Nodes that join with it wait until somebody approves them here."
    )

    class Meta(CredentialRow.Meta):
        pass

    def refusal(self, now: datetime) -> str | None:
        """Why it enrols nobody now, in words; None when it does."""
        if self.revoked:
            return "this join token was revoked"
        if self.expires and self.expires <= now:
            return f"this join token expired at {self.expires:%Y-%m-%d %H:%M} UTC"
        if self.uses_left == 0:
            return "this join token is used up"
        return None

    def spend(self, now: datetime) -> bool:
        """Takes one use, if one is left. Two nodes at once can't take the same one: the database counts."""
        usable = JoinToken.objects.filter(Q(expires=None) | Q(expires__gt=now), pk=self.pk, revoked=False)
        has_uses = usable.filter(Q(uses_left=None) | Q(uses_left__gt=0))
        return has_uses.update(uses_left=F("uses_left") - 1, last_used=now) == 1


class ApiKey(CredentialRow):
    kind = Kind.API

    allowed_models: models.ManyToManyField[LanguageModel, models.Model] = models.ManyToManyField(
        LanguageModel, blank=True, related_name="api_keys", help_text="What may be asked with it. None chosen: all."
    )
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="Requests that may begin within any minute. Empty: any number."
    )
    tokens_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="Tokens of prompts and answers within any minute. Empty: any number."
    )
    tokens_per_day = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Tokens of prompts and answers in a day (UTC). Empty: any number."
    )
    max_concurrent = models.PositiveIntegerField(
        "concurrent requests", null=True, blank=True, help_text="Requests at the same time. Empty: any number."
    )
    expires = models.DateTimeField(null=True, blank=True, help_text="After this moment it is refused. Empty: never.")

    class Meta(CredentialRow.Meta):
        verbose_name = "API key"

    def refusal(self, now: datetime) -> str | None:
        """Why it opens nothing now, in words; None when it does."""
        if self.revoked:
            return "this API key was revoked"
        if self.expires and self.expires <= now:
            return f"this API key expired at {self.expires:%Y-%m-%d %H:%M} UTC"
        return None

    def limits(self) -> dict[Limit, int]:
        """Those that it has, and what each allows."""
        most = {limit: getattr(self, limit.name) for limit in LIMITS}
        return {limit: number for limit, number in most.items() if number is not None}

    def limits_in_words(self) -> str:
        return ", ".join(limit.of(number) for limit, number in self.limits().items()) or "none"


class TicketKey(models.Model):
    """An Ed25519 key that signs tickets, made by the first migration; TICKET_KEYS takes its place when it is set."""

    kid = models.CharField(max_length=8, unique=True, help_text="First 8 hex digits of the public key's SHA-256.")
    private = models.CharField(max_length=44, help_text="Raw private key, base64. Whoever has it can sign tickets.")
    created = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created"]

    def __str__(self) -> str:
        return self.kid
