"""A crowd as a whole: its models, its nodes, its sessions, and who is on the relay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from random import Random

from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from tests.tracker.crowd import chats, figures, machines
from tests.tracker.fakes import PeerSocket
from tracker.models import ChatSession, LanguageModel, Node

MODELS = (  # name, layers, into how many shards, of every 20 nodes so many
    ("large", 80, 4, 12),
    ("middle", 24, 2, 5),
    ("gap", 12, 3, 3),  # nobody holds its last layers
    ("nobody", 6, 1, 0),
)


@dataclass
class Crowd:
    models: list[LanguageModel]
    nodes: list[Node]
    now: datetime
    spice: str

    @property
    def sessions(self) -> list[ChatSession]:
        """The newest first. One of each state is among the first hundred."""
        return list(ChatSession.objects.order_by("-started")[:100])

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Those that use the relay are on it, in this process; but for one in 20, which dropped out."""
        sockets: list[PeerSocket] = []

        async def attach() -> None:
            there = (node for node in self.nodes if node.uses_relay and not machines.has_dropped_out(node))
            sockets.extend(PeerSocket(node.peer_id, node.model.name) for node in there)

        async def leave() -> None:
            for socket in sockets:
                socket.leave()

        async_to_sync(attach)()
        try:
            yield
        finally:
            async_to_sync(leave)()


def crowd(
    num_nodes: int = 200,
    num_sessions: int = 10_000,
    *,
    num_samples: int = 120,
    spice: str = "",
    without_relay: bool = False,
    now: datetime | None = None,
) -> Crowd:
    """Rows in a database where none of them are yet. `num_samples`: of each node, one a minute until now.
    `without_relay`: all nodes are reached by endpoints, so that they are online where nobody can connect them."""
    now, random = now or timezone.now(), Random(num_nodes)
    with transaction.atomic():
        models = [make_model(name, num_layers, spice) for name, num_layers, _, _ in MODELS]
        nodes = machines.make(_places(models, num_nodes), spice, now, random, without_relay=without_relay)
        figures.make(nodes, num_samples, spice, now, random)
        chats.make(nodes, num_sessions, spice, now, random)
    return Crowd(models, nodes, now, spice)


def make_model(name: str, num_layers: int, spice: str) -> LanguageModel:
    return LanguageModel.objects.create(
        name=f"{name}{spice}",
        fingerprint=f"{num_layers:02x}" * 32,
        num_layers=num_layers,
        hidden_size=64,
        context_length=4096,
        layer_bytes=2**28,
        head_bytes=2**29,
        tail_bytes=2**29,
    )


def _places(models: list[LanguageModel], num_nodes: int) -> list[machines.Place]:
    """Model and layers of each node: whole routes one after another."""
    turns = [
        (model, num_layers, num_shards)
        for model, (_, num_layers, num_shards, of_twenty) in zip(models, MODELS, strict=True)
        for _ in range(of_twenty)
    ]
    taken: dict[str, int] = {}
    places = []
    for number in range(num_nodes):
        model, num_layers, num_shards = turns[number % len(turns)]
        part = taken[model.name] = taken.get(model.name, -1) + 1
        held = num_shards - 1 if model.name.startswith("gap") else num_shards
        length, part = num_layers // num_shards, part % held
        places.append(machines.Place(model, part * length, part * length + length))
    return places
