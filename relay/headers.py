"""The headers of a session: their names, the route and the ticket. Standard library only.

The tracker writes them, nodes read them and pass them from hop to hop, the relay carries them unread.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import Any

from relay.wire import MAX_BODY_BYTES, Code, WireError

SESSION = "x-meshnet-session"  # 32 hex digits
EPOCH = "x-meshnet-epoch"  # the number of the session's route
STEP = "x-meshnet-step"  # one forward pass, numbered by the head
POSITION = "x-meshnet-position"  # index of the step's first token
SHAPE = "x-meshnet-shape"  # "batch,tokens,width"
DTYPE = "x-meshnet-dtype"  # "bfloat16" or "float32": of the body
START_LAYER = "x-meshnet-start-layer"
END_LAYER = "x-meshnet-end-layer"
TICKET = "x-meshnet-ticket"
TOKENS = "x-meshnet-tokens"  # to the tail: the ids at the step's own positions, "1,2,3"
SAMPLING = "x-meshnet-sampling"  # to the tail: a JSON object; absent: nothing is sampled, as while the prompt goes in
GRAMMAR_BYTES = "x-meshnet-grammar-bytes"  # to the tail: how many of the body's last bytes are the grammar's text
DRAFTS = "x-meshnet-drafts"  # how many of the step's last tokens are guesses; in a tail's answer: how many it takes
RESERVE = "x-meshnet-reserve"  # first step: tokens the session may come to hold, prompt and answer together
ROUTE = "x-meshnet-route"  # to the head: the downstream hops, a JSON list
PREFILL_CHUNK = "x-meshnet-prefill-chunk"  # to the head: tokens per prefill step
DEADLINE_MS = "x-meshnet-deadline-ms"  # milliseconds the request has left
FAILOVER_WAIT_MS = "x-meshnet-failover-wait-ms"  # to the head: how long it waits for a hop that nobody replaces
CACHED = "x-meshnet-cached"  # in a 409 `missing`: tokens the hop holds
QUEUE_MS = "x-meshnet-queue-ms"  # in an answer: time the step waited for the engine
COMPUTE_MS = "x-meshnet-compute-ms"  # in an answer: time the engine worked on it
NONCE = "x-meshnet-nonce"  # GET /health: prove that this endpoint holds the node key
PROOF = "x-meshnet-proof"  # in the answer: HMAC-SHA256(SHA-256(secret), nonce), hex

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}

_SESSION_ID = re.compile(r"[0-9a-f]{32}")
_PEER_ID = re.compile(r"[0-9a-f]{8,64}")


def is_session_id(text: str) -> bool:
    return _SESSION_ID.fullmatch(text) is not None


def most_tokens(width: int, dtype: str, beside_bytes: int = 0) -> int:
    """Tokens of one step whose activations still fit in a body, with so many bytes of a grammar beside them."""
    return (MAX_BODY_BYTES - beside_bytes) // (width * DTYPE_BYTES[dtype])


def is_peer_id(text: str) -> bool:
    return _PEER_ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Hop:
    """One element of a route, as the record writes it: half-open layers, `endpoint` None where nothing listens.

    `wire`: the relay wire versions that the node speaks; the record's own, 1, isn't written.
    """

    peer_id: str
    start_layer: int
    end_layer: int
    endpoint: str | None = None
    relay_addr: str | None = None
    wire: tuple[int, ...] = (1,)

    def as_dict(self) -> dict[str, Any]:
        layers = {"start_layer": self.start_layer, "end_layer": self.end_layer}
        relay = {"relay_addr": self.relay_addr} if self.relay_addr else {}
        wire = {} if self.wire == (1,) else {"wire": list(self.wire)}
        return {"endpoint": self.endpoint, **layers, "peer_id": self.peer_id, **relay, **wire}


def encode_route(hops: list[Hop]) -> str:
    return json.dumps([hop.as_dict() for hop in hops], separators=(",", ":"))


def decode_route(text: str) -> list[Hop]:
    try:
        entries = json.loads(text)
        return [_hop(entry) for entry in entries]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(Code.BAD_REQUEST, f"{ROUTE} is not a list of hops: {error}") from None


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the tracker signs to allow a session, an epoch and a route (docs/security.md)."""

    kid: str  # which key signed
    session: str  # 128 random bits, 32 hex digits
    epoch: int
    fingerprint: str  # of the model
    head: str  # peer_id
    hops: tuple[tuple[str, int, int], ...]  # (peer_id, start_layer, end_layer), the head first: exactly the route
    dtype: str  # of activations on the wire
    max_tokens: int  # tokens the tail may sample
    seed: int
    expires: int  # Unix seconds, by the tracker's clock

    def payload(self) -> bytes:
        """The bytes that are signed: compact JSON with sorted keys."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def encode_ticket(payload: bytes, signature: bytes) -> str:
    return f"{b64url(payload)}.{b64url(signature)}"


def decode_ticket(text: str) -> tuple[Ticket, bytes, bytes]:
    """(ticket, payload, signature), nothing verified yet."""
    try:
        payload, signature = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in text.split("."))
        fields = json.loads(payload)
        fields["hops"] = tuple((str(peer), int(start), int(end)) for peer, start, end in fields["hops"])
        ticket = Ticket(**{name: fields[name] for name in Ticket.__slots__})
        ints = (ticket.epoch, ticket.max_tokens, ticket.seed, ticket.expires)
        texts = (ticket.kid, ticket.fingerprint, ticket.head, ticket.dtype)
        if not all(type(n) is int for n in ints) or not all(isinstance(t, str) for t in texts):
            raise ValueError("a field has the wrong type")
        if not ticket.hops or not is_session_id(ticket.session):
            raise ValueError("no hops, or no session id")
        return ticket, payload, signature
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise WireError(Code.FORBIDDEN, f"{TICKET} can't be read: {error}") from None


def _hop(entry: dict[str, Any]) -> Hop:
    start, end, peer_id = entry["start_layer"], entry["end_layer"], entry["peer_id"]
    endpoint, relay_addr, wire = entry.get("endpoint"), entry.get("relay_addr"), entry.get("wire", [1])
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        raise ValueError("start_layer and end_layer must be integers, 0 <= start < end")
    if not isinstance(peer_id, str) or any(not isinstance(text, str | None) for text in (endpoint, relay_addr)):
        raise ValueError("peer_id, endpoint and relay_addr must be strings")
    if not isinstance(wire, list) or any(type(version) is not int for version in wire):
        raise ValueError("wire must be a list of integers")
    return Hop(peer_id, start, end, endpoint, relay_addr, tuple(wire))


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
