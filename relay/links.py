"""What the switchboard keeps books of, and what it answers with: ends, requests in flight, effects."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from relay import wire
from relay.credit import Credit
from relay.wire import Code

Edge = TypeVar("Edge")

FORGIVEN_EACH_S = 10.0  # one replacement of a peer's connection by a newer one is forgotten after each


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
    credit: Credit
    version: int = 1  # of the wire; only 2 answers PINGs
    address: str = ""
    generation: int = 0  # of its registration, newer ones are higher; 0: it can't be asked
    since: float = 0.0  # of its registration, Unix seconds
    replaced: int = 0  # how many connections of this peer in a row ended by a newer one's registration
    fights: float = 0.0  # the same, forgiven with time
    fought_at: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    working: Load = field(default_factory=Load)  # what it was asked; bytes: of that, what it has read
    calls: dict[str, Flight[Edge]] = field(default_factory=dict)  # what it asked, by its own request ids
    tasks: dict[str, Flight[Edge]] = field(default_factory=dict)  # what it was asked, by the relay's
    unproved: OrderedDict[str, Flight[Edge]] = field(default_factory=OrderedDict)  # by the relay's ids: perhaps unread

    @property
    def outstanding(self) -> int:
        """Bytes that it hasn't read or hasn't answered, each counted once."""
        return self.credit.unread + self.working.bytes

    def fights_at(self, now: float) -> float:
        """How many of its replacements aren't forgotten."""
        return max(0.0, self.fights - (now - self.fought_at) / FORGIVEN_EACH_S)

    @property
    def rtt_s(self) -> float | None:
        return self.credit.rtt_s


@dataclass(slots=True, eq=False)
class Flight(Generic[Edge]):
    relay_id: str
    request_id: str
    caller: Link[Edge]
    callee: Link[Edge]
    deadline: float
    num_bytes: int  # 0 as soon as the answer has begun
    sent_at: float
    position: int = 0  # of its end in what the callee was sent
    is_read: bool = False
    streaming: bool = False


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
