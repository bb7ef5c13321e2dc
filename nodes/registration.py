"""What a node and its tracker say to each other when it registers and with each heartbeat (nodes/tracker.py asks)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nodes.keys import Key
from relay.wire import PROTOCOL_VERSION, WIRE_VERSIONS


@dataclass(frozen=True)
class ModelFacts:
    """What the tracker compares between nodes of one model."""

    name: str
    fingerprint: str
    num_layers: int
    hidden_size: int
    context_length: int
    layer_bytes: int | None = None  # of the largest layer, as the files have it; then of what is before and after them
    head_bytes: int | None = None
    tail_bytes: int | None = None


@dataclass(frozen=True)
class Place:
    """Layers that the tracker wants a node to take, once no session is left on it. `move`: the decision's number."""

    start_layer: int
    end_layer: int
    move: int

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Place:
        return cls(int(answer["start_layer"]), int(answer["end_layer"]), int(answer["move"]))


@dataclass(frozen=True)
class FailedMove:
    """A move that this node couldn't make, and why, in words."""

    move: int
    reason: str


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself when it registers."""

    name: str
    model: ModelFacts
    start_layer: int  # neither is said where the tracker picks them
    end_layer: int
    relay: bool
    endpoint: str | None
    memory_bytes: int
    threads: int
    dtype: str
    weights: str = "dense"
    device: str = "cpu"
    version: str = ""
    ms_per_layer: float | None = None
    max_cached_tokens: int | None = None  # of all sessions together; None: it depends on the layers
    wire_versions: tuple[int, ...] = WIRE_VERSIONS
    picks_layers: bool = False  # the tracker does, for it
    budget_bytes: int | None = None  # for weights and caches together
    layer_bytes: int | None = None  # of that for a layer, and beside the layers at the model's two ends, on this node
    head_bytes: int | None = None
    tail_bytes: int | None = None
    move: int | None = None  # that this registration carries out
    failed_move: FailedMove | None = None

    def as_message(self) -> dict[str, Any]:
        message = asdict(self) | {"protocol_version": PROTOCOL_VERSION, "wire_versions": list(self.wire_versions)}
        if message.pop("picks_layers"):
            del message["start_layer"], message["end_layer"]
            message["layers"] = "auto"
        return message


@dataclass(frozen=True)
class Standing:
    """What the tracker says with each answer: whether this node may work and what it shall do, its time, its keys."""

    is_approved: bool
    now: float
    heartbeat_s: float
    ticket_keys: Mapping[str, str]
    endpoint_error: str | None
    duty: str = "works"  # or "paused", "draining"
    closed: Mapping[str, int] = field(default_factory=dict)  # session -> epoch up to which it is over on this node
    move: tuple[str, ...] = ()  # sessions headed here whose routes shall leave another node
    place: Place | None = None  # which other layers it shall take
    new_key: str = ""  # that takes the place of its present one, which is good until this one is shown

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Standing:
        return cls(
            is_approved=answer["status"] == "approved",
            now=float(answer["now"]),
            heartbeat_s=max(0.2, float(answer["heartbeat_s"])),
            ticket_keys={str(kid): str(key) for kid, key in answer["ticket_keys"].items()},
            endpoint_error=answer.get("endpoint_error"),
            duty=str(answer.get("duty") or "works"),
            closed={str(session): int(epoch) for session, epoch in (answer.get("closed") or {}).items()},
            move=tuple(str(session) for session in answer.get("move") or ()),
            place=Place.read(answer["place"]) if answer.get("place") else None,
            new_key=str(answer.get("new_key") or ""),
        )


@dataclass(frozen=True)
class Registration:
    """The tracker's answer to a node that registers."""

    standing: Standing
    node_key: Key
    peer_id: str
    start_layer: int
    end_layer: int
    relay_url: str | None
    wire_versions: tuple[int, ...] = (1,)  # that the relay speaks
    id: str = ""  # names this registration: heartbeats carry it, so that those of an earlier one revive nothing
    reason: str = ""  # why these layers, where the tracker has chosen them

    @property
    def layers(self) -> tuple[int, int]:
        return self.start_layer, self.end_layer

    @classmethod
    def read(cls, answer: Mapping[str, Any], credential: str) -> Registration:
        return cls(
            standing=Standing.read(answer),
            node_key=str(answer.get("node_key") or credential),
            peer_id=str(answer["peer_id"]),
            start_layer=int(answer["start_layer"]),
            end_layer=int(answer["end_layer"]),
            relay_url=answer.get("relay_url"),
            wire_versions=tuple(answer.get("wire_versions") or [1]),
            id=str(answer.get("registration") or ""),
            reason=str(answer.get("reason") or ""),
        )
