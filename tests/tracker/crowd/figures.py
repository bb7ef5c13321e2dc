"""What a crowd's pages tell beside nodes and sessions: samples, contributions, moves, keys, what operators did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random

from tracker.models import (
    ApiKey,
    AuditEntry,
    Contribution,
    LanguageModel,
    Move,
    Node,
    NodeSample,
    RefusedFingerprint,
    Usage,
)

NUM_KEYS, NUM_DAYS = 20, 7


def make(nodes: Sequence[Node], num_samples: int, spice: str, now: datetime, random: Random) -> None:
    NodeSample.objects.bulk_create(_samples(nodes, num_samples, now, random))
    Contribution.objects.bulk_create(_contributions(nodes, now))
    Move.objects.bulk_create(_moves(nodes, spice, now))
    keys = ApiKey.objects.bulk_create(
        [ApiKey(key_id=f"api{number}", label=f"user {number}{spice}") for number in range(NUM_KEYS)]
    )
    model = LanguageModel.objects.order_by("pk")[0]
    Usage.objects.bulk_create(_usage(keys, model.name, now))
    AuditEntry.objects.bulk_create(_entries(nodes, spice, now))
    RefusedFingerprint.objects.create(fingerprint="ee" * 32, reason=f"it was changed{spice}")


def _samples(nodes: Sequence[Node], num_samples: int, now: datetime, random: Random) -> list[NodeSample]:
    return [
        NodeSample(
            node=node,
            at=now - timedelta(minutes=minutes),
            rtt_ms=random.uniform(2, 120),
            hop_ms=random.uniform(5, 90) if minutes % 5 else None,
            bytes_in=random.randint(0, 10**7),
            bytes_out=random.randint(0, 10**7),
            sessions=random.randint(0, 4),
            cached_tokens=random.randint(0, 4000),
        )
        for node in nodes
        for minutes in range(num_samples)
    ]


def _contributions(nodes: Sequence[Node], now: datetime) -> list[Contribution]:
    return [
        Contribution(
            node=node,
            node_name=node.name,
            owner=node.joined_with,
            owner_label=node.joined_with.label if node.joined_with else "",
            day=(now - timedelta(days=days)).date(),
            model_name=node.model.name,
            sessions=40,
            tokens=4000,
            token_layers=80_000,
        )
        for node in nodes
        for days in range(NUM_DAYS)
    ]


def _moves(nodes: Sequence[Node], spice: str, now: datetime) -> list[Move]:
    """One of each state in every five."""
    states = list(Move.State)
    return [
        Move(
            model=node.model,
            node=node,
            from_start=0,
            from_end=5,
            to_start=5,
            to_end=10,
            gain=1.5,
            reason=f"layers 5–9 are held once{spice}",
            state=states[number % len(states)],
            decided_by=f"ann{spice}" if number % len(states) else "",
            outcome=f"it had left{spice}" if states[number % len(states)] == Move.State.DROPPED else "",
            created=now - timedelta(minutes=number),
            changed=now - timedelta(minutes=number),
        )
        for number, node in enumerate(node for node in nodes if node.picks_layers)
    ]


def _usage(keys: Sequence[ApiKey], model_name: str, now: datetime) -> list[Usage]:
    return [
        Usage(
            api_key=key,
            day=(now - timedelta(days=days)).date(),
            model_name=model_name,
            requests=50,
            prompt_tokens=5000,
            completion_tokens=9000,
        )
        for key in keys
        for days in range(NUM_DAYS)
    ]


def _entries(nodes: Sequence[Node], spice: str, now: datetime) -> list[AuditEntry]:
    return [
        AuditEntry(
            at=now - timedelta(minutes=number),
            actor_name=f"ann{spice}",
            action="pause",
            kind="node",
            object_id=str(node.pk),
            target=node.name,
            reason=f"a new disk{spice}",
            address="192.0.2.1",
        )
        for number, node in enumerate(nodes)
    ]
