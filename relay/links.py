"""What the switchboard keeps books of, and what it answers with: ends, requests in flight, effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from relay import wire
from relay.wire import Code

Edge = TypeVar("Edge")


@dataclass(slots=True)
class Load:
    sockets: int = 0
    requests: int = 0
    bytes: int = 0


@dataclass(slots=True, eq=False)
class Link(Generic[Edge]):
    """One end. `edge` is what the process sends through; it is never looked into here."""

    peer_id: str
    scope: str
    edge: Edge
    asking: Load  # of the caller, over all its links
    generation: int = 0  # of its registration; 0: it can't be asked
    since: float = 0.0  # of its registration, Unix seconds
    working: Load = field(default_factory=Load)
    calls: dict[str, Flight[Edge]] = field(default_factory=dict)  # what it asked, by its own request ids
    tasks: dict[str, Flight[Edge]] = field(default_factory=dict)  # what it was asked, by the relay's
    unread: dict[str, Unread] = field(default_factory=dict)  # by the relay's ids


@dataclass(slots=True, eq=False)
class Flight(Generic[Edge]):
    number: int
    relay_id: str
    request_id: str
    caller: Link[Edge]
    callee: Link[Edge]
    deadline: float
    num_bytes: int
    streaming: bool = False


@dataclass(frozen=True, slots=True)
class Unread:
    """What a request that ended here still occupies: the peer may not have read it."""

    number: int
    num_bytes: int
    until: float


@dataclass(frozen=True, slots=True)
class Send(Generic[Edge]):
    link: Link[Edge]
    frame: wire.Frame
    sender: str = ""  # the peer_id of the other end, where it is one who speaks


@dataclass(frozen=True, slots=True)
class Close(Generic[Edge]):
    link: Link[Edge]
    code: Code
    message: str


Effects = list[Send[Edge] | Close[Edge]]
