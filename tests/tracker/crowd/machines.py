"""The nodes of a crowd: in every 20 one of each kind that a page tells apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from tracker.models import JoinToken, LanguageModel, Node, Shard

EACH = 20
DROPPED_OUT = 13  # heard of, but without its socket
DEVICES = ("cpu", "cuda", "mps")


@dataclass(frozen=True)
class Place:
    model: LanguageModel
    start_layer: int
    end_layer: int


def has_dropped_out(node: Node) -> bool:
    return kind_of(node) == DROPPED_OUT


def kind_of(node: Node) -> int:
    return int(node.peer_id, 16) % EACH


def make(
    places: Sequence[Place], spice: str, now: datetime, random: Random, *, without_relay: bool = False
) -> list[Node]:
    owners = JoinToken.objects.bulk_create(
        [JoinToken(key_id=f"join{number}", label=f"owner {number}{spice}") for number in range(5)]
    )
    rows = [
        Node(
            **_plain(number, place, spice, now, random, without_relay or number % 3 == 0)
            | _odd(number % EACH, spice, now)
        )
        for number, place in enumerate(places)
    ]
    for number, node in enumerate(rows):
        node.joined_with = owners[number % len(owners)] if number % 7 else None
    nodes = Node.objects.bulk_create(rows)
    Shard.objects.bulk_create(
        [
            Shard(
                node=node,
                start_layer=place.start_layer,
                end_layer=place.end_layer,
                reason=f"nobody held them{spice}" if node.picks_layers else "",
            )
            for node, place in zip(nodes, places, strict=True)
        ]
    )
    return nodes


def _plain(number: int, place: Place, spice: str, now: datetime, random: Random, is_direct: bool) -> dict[str, Any]:
    """One that works."""
    memory_bytes = 2 ** random.randint(32, 36)
    return {
        "name": f"node-{number:03}{spice}",
        "peer_id": f"{number:032x}",
        "key_id": f"key{number}",
        "secret_hash": "0" * 64,
        "status": Node.Status.APPROVED,
        "model": place.model,
        "model_facts": {
            name: getattr(place.model, name) for name in ("fingerprint", "num_layers", "hidden_size", "context_length")
        },
        "uses_relay": not is_direct,
        "wire_versions": [1, 2],
        "endpoint": f"http://10.0.{number // 250}.{number % 250}:9000" if is_direct else "",
        "endpoint_address": f"10.0.{number // 250}.{number % 250}" if is_direct else "",
        "endpoint_proved_until": now + timedelta(hours=2) if is_direct else None,
        "address": f"192.0.2.{number % 250}",
        "version": f"0.4.{number % 3}{spice}"[:40],
        "device": f"{DEVICES[number % 3]}{spice}",
        "dtype": "bfloat16",
        "weights": ("dense", "int8", "int4")[number % 3],
        "threads": random.randint(1, 16),
        "memory_bytes": memory_bytes,
        "ms_per_layer": round(random.uniform(0.2, 4.0), 3),
        "picks_layers": number % 2 == 0,
        "budget_bytes": memory_bytes // 2,
        "layer_bytes": 2**28,
        "head_bytes": 2**29,
        "tail_bytes": 2**29,
        "rtt_ms": round(random.uniform(2, 120), 1),
        "state": "serving",
        "cached_tokens": random.randint(0, 4000),
        "reserved_tokens": 4000,
        "max_cached_tokens": 16_384,
        "sessions": random.randint(0, 4),
        "registration": f"{number:032x}",
        "is_registered": True,
        "lease_until": now + timedelta(hours=2),
        "last_seen": now,
    }


def _odd(kind: int, spice: str, now: datetime) -> dict[str, Any]:
    """What sets this kind apart from one that works; for most kinds nothing."""
    gone = {"lease_until": now - timedelta(minutes=9), "last_seen": now - timedelta(minutes=9)}
    kinds: dict[int, dict[str, Any]] = {
        4: {"status": Node.Status.PENDING},
        5: {"status": Node.Status.REVOKED, **gone},
        6: {"banned_until": now + timedelta(days=1), "ban_reason": f"too slow{spice}", **gone},
        7: {"duty": Node.Duty.PAUSED},
        8: {"duty": Node.Duty.DRAINING},
        9: {
            "breaker_until": now + timedelta(hours=1),
            "breaker_openings": 3,
            "breaker_reason": f"no path works{spice}",
        },
        10: {"state": "loading", "done_bytes": 2**30, "total_bytes": 2**32},
        11: gone,
        12: {"is_registered": False, "state": "left", **gone},
        14: {"state": f"resting{spice}"[:20], "endpoint_error": f"nobody answers there{spice}"},
    }
    return kinds.get(kind, {})
