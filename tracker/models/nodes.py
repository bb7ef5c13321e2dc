"""The machines that hold layers of a model, and which layers each holds."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models, transaction
from django.db.models import F, Q
from django.utils import timezone

from tracker import bans, credentials
from tracker.breaker import Breaker, State
from tracker.endpoints import parse_endpoint
from tracker.models.keys import find_by_credential
from tracker.models.languages import LanguageModel, RefusedFingerprint
from tracker.relays import relay_of
from tracker.standing import Standing, standing
from tracker.words import layers_in_words

LEASE_S = {True: 20.0, False: 5.0}  # by uses_relay: a socket tells at once when such a node dies, a lease must hurry
HEARTBEAT_S = {True: 5.0, False: 1.5}
NODE_NAME = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9 ._-]*\Z",
    "A node's name has letters, digits, spaces and . _ - and starts with one of the first.",
)


class NodeQuerySet(models.QuerySet["Node"]):
    def with_key(self, text: str) -> Node | None:
        """Whose key this is. The one that is to take another's place does so when it is first shown."""
        node: Node | None = find_by_credential(self.select_related("model"), text)
        return self._with_next_key(text) if node is None and credentials.is_node_key(text) else node

    def _with_next_key(self, text: str) -> Node | None:
        given = credentials.parse(text)
        nodes = self.filter(next_key_id=given.key_id) if given else self.none()
        node = nodes.first()
        if given and node and credentials.matches(given.secret, node.next_secret_hash):
            used = {"key_id": F("next_key_id"), "secret_hash": F("next_secret_hash")}
            nodes.update(**used, next_key_id="", next_secret_hash="", rotates_key=False)
        found: Node | None = find_by_credential(self.select_related("model"), text)  # or another was just faster
        return found

    def online(self, now: datetime, present: Collection[str]) -> Self:
        """Approved, not banned, heard of within the lease, and reachable: `present` on the relay, or by a proved
        endpoint."""
        alive = self.filter(Q(banned_until=None) | Q(banned_until__lte=now), status=Node.Status.APPROVED)
        return alive.filter(
            Q(uses_relay=True, peer_id__in=present) | Q(endpoint_proved_until__gt=now) & ~Q(endpoint_address=""),
            lease_until__gt=now,
        )


class Node(models.Model):
    class Status(models.TextChoices):
        PENDING = "pending"
        APPROVED = "approved"
        REVOKED = "revoked"

    class Duty(models.TextChoices):
        WORKS = "works", "works: takes sessions"
        PAUSED = "paused", "paused: new sessions go elsewhere, its own finish there"
        DRAINING = "draining", "draining: new sessions go elsewhere, its own move away"

    load: int = 0  # sessions that run through it; candidates.loaded tells it, and the tokens
    given_tokens: int = 0  # of answers that sessions got which began after it was last heard of

    name = models.CharField(max_length=64, unique=True, validators=[NODE_NAME], help_text="As its owner calls it.")
    peer_id = models.CharField(max_length=32, unique=True, editable=False, help_text="Its address on the relay.")
    key_id = models.CharField(max_length=64, unique=True, editable=False, help_text="Public part of its node key.")
    secret_hash = models.CharField(max_length=64, editable=False, help_text="SHA-256 of its node key's secret part.")
    status = models.CharField(
        max_length=8,
        choices=Status.choices,
        default=Status.PENDING,
        help_text="Only approved nodes work. Use the actions of the list: they check the model and tell the relay.",
    )
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="nodes", help_text="What it holds.")
    model_facts = models.JSONField(default=dict, editable=False, help_text="What it said of its copy of the model.")
    joined_with = models.ForeignKey(
        "tracker.JoinToken", null=True, blank=True, on_delete=models.SET_NULL, related_name="nodes", editable=False
    )

    uses_relay = models.BooleanField(
        default=True, help_text="Keeps a socket to the relay open and is asked through it."
    )
    wire_versions = models.JSONField(default=list, editable=False, help_text="Relay wire versions that it speaks.")
    endpoint = models.CharField(
        max_length=200, blank=True, help_text="Where it says it listens, as http://host:port. Empty: nowhere."
    )
    endpoint_address = models.CharField(
        max_length=64, blank=True, help_text="The address behind the endpoint at the last check; only this is dialled."
    )
    endpoint_proved_until = models.DateTimeField(
        null=True, blank=True, help_text="The endpoint proved that it holds the node key; it is used until then."
    )
    endpoint_error = models.CharField(max_length=300, blank=True, help_text="Why the endpoint isn't used.")
    address = models.GenericIPAddressField(null=True, blank=True, help_text="Where its last registration came from.")

    version = models.CharField(max_length=40, blank=True, help_text="Of the program it runs.")
    device = models.CharField(max_length=60, blank=True, help_text="What it computes on.")
    dtype = models.CharField(max_length=10, blank=True, help_text="What it computes in.")
    weights = models.CharField(
        max_length=10, blank=True, help_text="How it keeps its matrices: dense as it computes, or in int8 or int4."
    )
    threads = models.PositiveIntegerField(null=True, blank=True)
    memory_bytes = models.PositiveBigIntegerField(null=True, blank=True)
    ms_per_layer = models.FloatField(null=True, blank=True, help_text="Time of one token through one layer.")
    picks_layers = models.BooleanField(default=False, help_text="It leaves the choice of its layers to the site.")
    is_moving = models.BooleanField(
        default=False, editable=False, help_text="It is about to take other layers: its sessions move away first."
    )
    budget_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Memory that it gives to weights and caches together."
    )
    layer_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="What a layer takes of that on this node, with its share of the caches."
    )
    head_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="What the first layer's node needs beside its layers."
    )
    tail_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="What the last layer's node needs beside its layers."
    )
    rtt_ms = models.FloatField("round trip in ms", null=True, blank=True, help_text="Of the relay's last pings to it.")
    state = models.CharField(max_length=20, blank=True, help_text="What it last said it does.")
    done_bytes = models.PositiveBigIntegerField(null=True, blank=True, help_text="Of its weights, fetched so far.")
    total_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Of its weights, to be fetched in all."
    )
    cached_tokens = models.PositiveBigIntegerField(default=0, help_text="Tokens in its caches, by its last heartbeat.")
    reserved_tokens = models.PositiveBigIntegerField(default=0, help_text="Tokens its sessions may come to hold.")
    max_cached_tokens = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Tokens it has room for; beyond, it is busy."
    )
    sessions = models.PositiveIntegerField(default=0, help_text="Sessions it holds caches of, by its last heartbeat.")

    duty = models.CharField(
        max_length=8, choices=Duty.choices, default=Duty.WORKS, help_text="What the operator has it do."
    )
    banned_until = models.DateTimeField(null=True, blank=True, help_text="It is let in again after this moment.")
    ban_reason = models.CharField(max_length=300, blank=True, help_text="Why; its owner reads it.")
    next_key_id = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Of the key that is to take the place of its present one."
    )
    next_secret_hash = models.CharField(
        max_length=64, blank=True, editable=False, help_text="SHA-256 of that key's secret part."
    )
    rotates_key = models.BooleanField(
        default=False, editable=False, help_text="It is given a new key with its next heartbeat."
    )
    breaker_until = models.DateTimeField(
        null=True, blank=True, help_text="No session goes through it until then; after that one may try."
    )
    breaker_openings = models.PositiveIntegerField(
        default=0, help_text="In a row; each doubles the time it is left out."
    )
    breaker_reason = models.CharField(max_length=300, blank=True, help_text="Why it is left out.")
    cleared = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When an operator last had it used again: what was said of it before that doesn't count.",
    )

    registration = models.CharField(max_length=32, blank=True, editable=False, help_text="Names its last registration.")
    heartbeat_number = models.PositiveBigIntegerField(default=0, editable=False, help_text="Of its last heartbeat.")
    is_registered = models.BooleanField(default=False, help_text="Off once it has said that it leaves.")
    lease_until = models.DateTimeField(null=True, blank=True, help_text="Offline after this, unless it is heard of.")
    last_seen = models.DateTimeField(null=True, blank=True)
    created = models.DateTimeField(default=timezone.now, editable=False)

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        permissions = [("see_dashboard", "Can see the dashboard")]

    def __str__(self) -> str:
        return self.name

    @property
    def lease_s(self) -> float:
        return LEASE_S[self.uses_relay]

    @property
    def heartbeat_s(self) -> float:
        return HEARTBEAT_S[self.uses_relay]

    @property
    def relay_url(self) -> str | None:
        """Where it connects: the relay that all nodes of its model share."""
        return relay_of(self.model.name, settings.RELAY_URLS) if self.uses_relay else None

    @property
    def relay_addr(self) -> str | None:
        """Where other nodes reach it through the relay."""
        return f"{self.relay_url}/rpc/{self.peer_id}" if self.uses_relay else None

    @property
    def dial_url(self) -> str:
        """The endpoint by the address that was checked: a name could lead elsewhere by now."""
        return parse_endpoint(self.endpoint).at(self.endpoint_address)

    def heartbeat(self, now: datetime, registration: str, number: int, **news: Any) -> bool:
        """Renews the lease. One that comes late revives nothing: False when it is of another registration, was numbered
        before one that has come, when the lease is over or the node has left."""
        news |= {"last_seen": now, "lease_until": now + timedelta(seconds=self.lease_s), "heartbeat_number": number}
        mine = Node.objects.filter(pk=self.pk, registration=registration, heartbeat_number__lt=number)
        alive = mine.filter(is_registered=True, lease_until__gt=now).exclude(status=Node.Status.REVOKED)
        alive = alive.filter(Q(banned_until=None) | Q(banned_until__lte=now))
        renewed = alive.update(**news)
        for name, value in news.items():
            setattr(self, name, value)
        return renewed == 1

    def leave(self, now: datetime) -> None:
        """Ends the lease at once."""
        Node.objects.filter(pk=self.pk).update(is_registered=False, lease_until=now, last_seen=now, state="left")

    def approve(self) -> None:
        """Lets it work. Raises ValidationError, in words that follow a colon, when its copy isn't the model that others
        of this name serve, or is refused."""
        with transaction.atomic():
            model = LanguageModel.objects.select_for_update().get(pk=self.model_id)
            refused = RefusedFingerprint.refusal(self.model_facts.get("fingerprint", ""))
            mismatch = model.mismatch(self.model_facts) or (f"its {refused}" if refused else None)
            if mismatch:
                raise ValidationError(mismatch)
            model.fix(self.model_facts)
            self.status = Node.Status.APPROVED
            self.save(update_fields=["status"])

    def revoke(self) -> None:
        """Locks it out. Whoever calls this tells relay.auth to forget the peer, so that it is out at once."""
        self.status, self.lease_until = Node.Status.REVOKED, None
        self.save(update_fields=["status", "lease_until"])

    def ban(self, now: datetime) -> str | None:
        """That it is kept out, until when and why, in words; None when it isn't."""
        return bans.in_words(self.banned_until, self.ban_reason, now)

    def is_left(self, now: datetime) -> bool:
        """Sessions that run through it are to go on elsewhere."""
        return self.is_draining or self.ban(now) is not None

    @property
    def is_draining(self) -> bool:
        """By the operator, or because it is to take other layers."""
        return self.duty == Node.Duty.DRAINING or self.is_moving

    @property
    def breaker(self) -> Breaker:
        return Breaker(self.breaker_until, self.breaker_openings, self.breaker_reason)

    @property
    def room_tokens(self) -> int | None:
        """That a new session finds in its caches, once its load is told; None: it hasn't said."""
        if self.max_cached_tokens is None:
            return None
        return self.max_cached_tokens - self.reserved_tokens - self.given_tokens

    def closed_to_sessions(self, now: datetime) -> str | None:
        """Why no new session goes through it though it is online, in words; None when it takes some. Once
        its load is told."""
        if self.duty != Node.Duty.WORKS:
            return f"is {'paused' if self.duty == Node.Duty.PAUSED else 'being drained'} by the operator"
        if self.is_moving:
            return "is about to take other layers"
        if self.breaker.state(now) == State.OPEN:
            return f"is left out until {self.breaker_until:%H:%M:%S} UTC: {self.breaker_reason}"
        if self.breaker.state(now) == State.HALF_OPEN and self.load:
            return f"is being tried by one session after it failed: {self.breaker_reason}"
        return None

    @property
    def progress(self) -> tuple[int, int] | None:
        """(bytes fetched, bytes in all) while it fetches its weights and has said how far it is."""
        if self.state != "loading" or self.done_bytes is None or not self.total_bytes:
            return None
        return min(self.done_bytes, self.total_bytes), self.total_bytes

    def is_endpoint_proved(self, now: datetime) -> bool:
        return bool(self.endpoint_address and self.endpoint_proved_until and self.endpoint_proved_until > now)

    def standing(self, now: datetime, *, is_present: bool) -> Standing:
        """Online or not, and why: the rule of `online()` for one row, in words."""
        return standing(
            status=self.status,
            ban=self.ban(now),
            last_seen=self.last_seen,
            lease_until=self.lease_until,
            uses_relay=self.uses_relay,
            is_present=is_present,
            is_endpoint_proved=self.is_endpoint_proved(now),
            endpoint=self.endpoint,
            endpoint_error=self.endpoint_error,
            has_left=not self.is_registered,
            heartbeat_s=self.heartbeat_s,
            progress=self.progress,
            closed=self.closed_to_sessions(now),
            now=now,
        )


class Shard(models.Model):
    """A node's layers, half-open as in code: [start_layer, end_layer)."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="shard")
    start_layer = models.PositiveIntegerField(help_text="The first layer it holds.")
    end_layer = models.PositiveIntegerField(help_text="The layer after its last one.")
    loaded_start = models.PositiveIntegerField(
        null=True, blank=True, editable=False, help_text="The first one in its memory, where it is used for fewer."
    )
    loaded_end = models.PositiveIntegerField(
        null=True, blank=True, editable=False, help_text="The layer after the last one in its memory."
    )
    reason = models.CharField(max_length=500, blank=True, help_text="Why these, where the site chose them.")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(start_layer__lt=models.F("end_layer")), name="shard_not_empty")
        ]

    def __str__(self) -> str:
        return layers_in_words(self.start_layer, self.end_layer)

    @property
    def loaded(self) -> tuple[int, int]:
        """What the node has in memory, or is to load: what it is used for lies within."""
        if self.loaded_start is None or self.loaded_end is None:
            return self.start_layer, self.end_layer
        return self.loaded_start, self.loaded_end
