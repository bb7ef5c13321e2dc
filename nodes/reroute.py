"""What a head and its tracker say to each other when a hop is lost: POST /api/sessions/<id>/reroute.

One HTTP request under a real deadline: connect, TLS and a slow answer together. How often to ask, and what to do
meanwhile, is decided in failover.py.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol
from urllib.parse import urlsplit

from nodes.deadline import Deadline
from nodes.hops import DirectHop, HopAnswer, HopError
from nodes.keys import Key
from relay.headers import Hop, decode_route
from relay.wire import Code, WireError, error_of

MOVE = "move"  # the code of a loss that is none: the tracker has asked for another route
NO_ROUTE = "no_route"
MAX_PAUSE_S = 60.0  # of a Retry-After
_NOT_OURS = {(403, Code.FORBIDDEN), (404, Code.NOT_FOUND), (409, Code.STALE)}


@dataclass(frozen=True, slots=True)
class Loss:
    """A hop that a session can't go on with, in the words of its head."""

    peer_id: str
    start_layer: int
    end_layer: int
    code: str  # node_failed where no path works, else what the node answered, or MOVE
    cause: str


@dataclass(frozen=True, slots=True)
class NextRoute:
    """The tracker's answer."""

    epoch: int
    ticket_text: str
    hops: tuple[Hop, ...]  # after the head

    @classmethod
    def read(cls, body: bytes) -> NextRoute:
        """Raises ValueError."""
        try:
            fields = json.loads(body)
            epoch, ticket = fields["epoch"], fields["ticket"]
            if type(epoch) is not int or not isinstance(ticket, str):
                raise ValueError("the epoch or the ticket has the wrong type")
            return cls(epoch, ticket, tuple(decode_route(json.dumps(fields["route"]))))
        except (KeyError, TypeError, RecursionError, WireError) as error:
            raise ValueError(f"{type(error).__name__} {error}") from None


class NoAnswer(Exception):
    """The tracker can't be asked now, or what it said can't be read. It may have raised the epoch."""


class NotNow(Exception):
    """The tracker knows of no other route now, or has been asked too often: later there may be one."""

    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(message)
        self.pause_s = pause_s


class NotOurs(Exception):
    """The session goes on elsewhere, or has ended: nobody here may touch what it holds."""


class Refused(Exception):
    """The tracker doesn't know this node, or doesn't follow what it asks."""


class Rerouter(Protocol):
    def ask(
        self, session: str, epoch: int, loss: Loss, position: int, failed: Sequence[str], deadline: Deadline
    ) -> NextRoute:
        """The session's next route. Raises NoAnswer, NotNow, NotOurs, Refused."""


@dataclass(frozen=True)
class TrackerRerouter:
    """Used by many threads at once; each question has a connection of its own."""

    tracker_url: str
    node_key: Key
    tls: ssl.SSLContext

    def ask(
        self, session: str, epoch: int, loss: Loss, position: int, failed: Sequence[str], deadline: Deadline
    ) -> NextRoute:
        message = {"epoch": epoch, "lost": asdict(loss), "position": position, "failed": list(failed)}
        target = f"{urlsplit(self.tracker_url).path.rstrip('/')}/api/sessions/{session}/reroute"
        headers = {"authorization": f"Bearer {self.node_key}", "content-type": "application/json"}
        http = DirectHop(self.tracker_url, self.tls)
        try:
            answer = http.ask("POST", target, headers, json.dumps(message).encode(), deadline)
        except HopError as error:
            raise NoAnswer(f"the tracker can't be asked: {error.cause}") from None
        finally:
            http.close()
        if answer.status != 200:
            raise _refusal(answer)
        try:
            return NextRoute.read(answer.body)
        except ValueError as error:
            raise NoAnswer(f"the tracker's answer can't be read: {error}") from None


def _refusal(answer: HopAnswer) -> Exception:
    code, message = error_of(answer.status, answer.body)
    if (answer.status, code) in _NOT_OURS:
        return NotOurs(message)
    if answer.status == 429 or code == NO_ROUTE:
        return NotNow(message, _pause_s(answer.headers.get("retry-after", "")))
    if answer.status >= 500:
        return NoAnswer(f"the tracker answers HTTP {answer.status}: {message}")
    return Refused(f"the tracker refuses a reroute, HTTP {answer.status}: {message}")


def _pause_s(text: str) -> float:
    """Of a Retry-After in seconds."""
    return min(float(text), MAX_PAUSE_S) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
