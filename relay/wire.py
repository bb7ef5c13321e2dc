"""What crosses the relay: frames, their limits and their errors, and version 2 of the wire. Standard library only.

The relay carries requests from an asker to a peer, and answers back. An asker may have many requests open and each
ends exactly once: by the answer of the peer that was asked, by an ERROR, or by its own CANCEL.

    peer  -> relay   HELLO                 on /ws, first, within 5 s; the id must be the credential's
    relay -> peer    WELCOME               it may be asked, and may ask; on /rpc/<peer_id> unasked: it may ask
    asker -> relay   REQUEST id=its own    to any peer of its scope; on /rpc to that one
    relay -> peer    REQUEST id=relay's    with `from`; late answers can't match, askers can't collide
    peer  -> relay -> asker   RESPONSE     whole; with stream: CHUNK … and a last one, empty
    relay -> asker   ERROR                 instead of an answer, or in the middle of one; id "": about the socket
    asker -> relay -> peer    CANCEL       nobody waits any more; the relay says it too, at a deadline or when askers go
    both             PING -> PONG          each period and after each MiB sent: PONG alone proves reading
    relay -> peer    DRAIN                 this process stops: finish, then connect again after a random time

The relay writes `from` into every frame it passes on and never reads a body. A version 2 socket has the WebSocket
subprotocol `meshnet.v2`, offered by the client and picked by the relay, and carries binary messages only (codec.py):

    byte 0 version | byte 1 kind | bytes 2-3 length M of meta, big endian | M bytes meta: a JSON object | body

Unknown keys are ignored, `to` and `from` may be absent. Without the subprotocol a socket speaks version 1, JSON text
(envelope.py), over the same frames. Its first byte is never 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

PROTOCOL_VERSION = 1  # what a node and a tracker must agree on; a node of another version is told to upgrade
WIRE_VERSIONS = (1, 2)  # relay wire versions this program speaks
VERSION = 2  # byte 0 of every frame
SUBPROTOCOL = "meshnet.v2"

KIB = 1024
MAX_BODY_BYTES = 1024 * KIB  # decoded; prefill is cut into chunks of tokens that stay below it
MAX_HEADERS = 32
MAX_META_BYTES = 8 * KIB  # method, path and headers together
MAX_META_LENGTH = 2 * MAX_META_BYTES + 2 * KIB  # the same as JSON, every character escaped, and what stands around it
MAX_MESSAGE_BYTES = 4 * 2 * MAX_BODY_BYTES // 3 + 64 * KIB  # twice the body, base64: one a little over gets its 413
MAX_FIRST_MESSAGE_BYTES = 8 * KIB  # before a peer has registered
REGISTER_DEADLINE_S = 5.0
MAX_IN_FLIGHT_PER_PEER = 64  # requests a peer has been asked and hasn't answered
MAX_IN_FLIGHT_PER_CALLER = 64  # over all its sockets
MAX_BYTES_IN_FLIGHT = 8 * 1024 * KIB  # of those requests: what a peer that reads nothing, or one caller, can pin here
MAX_UNREAD_BYTES = 15 * 1024 * KIB  # of answers that wait for an asker: with 8 MiB it may ask no more, these still come
MAX_SOCKETS_PER_CALLER = 256
DEFAULT_DEADLINE_S = 120.0
MAX_DEADLINE_S = 600.0
MAX_SOCKETS_PER_PROCESS = 10_000
MAX_IN_FLIGHT_PER_PROCESS = 4096
MAX_BYTES_PER_PROCESS = 256 * 1024 * KIB  # of those requests; and of what waits to be written, once more
PING_S = 10.0  # the period of PINGs; RELAY_PING_S changes it, and all that follows from it
PING_EACH_BYTES = 1024 * KIB
STALL_PERIODS = 1.5  # periods without a PONG while one is due: the other end is dead or doesn't read
SERVER_PING_PERIODS = 2.0  # between the server's own pings: on v1 sockets they alone tell the living from the dead

TRACKER = "tracker"  # the `from` of requests that the tracker makes itself; no peer_id can be this


class Code(StrEnum):
    """Error codes, in frames, in envelopes, in the API's errors and in the logs."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    STALE = "stale"  # a later epoch or step has been seen
    MISSING = "missing"  # the cache is shorter than the step's position
    NO_GRAMMAR = "no_grammar"  # the tail doesn't know the grammar that a step is sampled by
    BAD_GRAMMAR = "bad_grammar"  # an answer can't be held to its grammar, by whatever tail
    CONFLICT = "conflict"  # a request_id in use on this socket; a registration replaced by a newer one
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    PEER_GONE = "peer_gone"
    BAD_ANSWER = "bad_answer"  # the peer's answer breaks a rule of this page
    PEER_BUSY = "peer_busy"
    BUSY = "busy"
    DRAINING = "draining"
    DEADLINE = "deadline"
    UPGRADE = "upgrade"
    INTERNAL = "internal"


STATUS = {
    Code.BAD_REQUEST: 400,
    Code.BAD_GRAMMAR: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.STALE: 409,
    Code.MISSING: 409,
    Code.NO_GRAMMAR: 409,
    Code.CONFLICT: 409,
    Code.TOO_LARGE: 413,
    Code.UPGRADE: 426,
    Code.RATE_LIMITED: 429,
    Code.PEER_BUSY: 429,
    Code.INTERNAL: 500,
    Code.PEER_GONE: 502,
    Code.BAD_ANSWER: 502,
    Code.BUSY: 503,
    Code.DRAINING: 503,
    Code.DEADLINE: 504,
}

_CODES = {code.value: code for code in Code}

# Close codes are 4000 + status, but for CLOSE_UPGRADE; WebSocket leaves 4000-4999 to applications.
CLOSE_CREDENTIAL = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_UPGRADE = 4406
CLOSE_REPLACED = 4409
CLOSE_TOO_LARGE = 4413
CLOSE_DRAINING = 4503


class Kind(IntEnum):
    REQUEST = 1  # {id, to, from, method, path, headers, deadline_ms} body
    RESPONSE = 2  # {id, to, from, status, headers, stream} body; stream: no body, CHUNKs follow
    CHUNK = 3  # {id, to, from, last} body; last: no body
    CANCEL = 4  # {id, to, from}
    PING = 5  # {n}
    PONG = 6  # {n}, the one of the PING that is answered
    ERROR = 7  # {id, code, message}; id "": about the socket
    HELLO = 8  # {peer_id}
    WELCOME = 9  # {peer_id, generation, limits, relay_addr}; generation 0: it can't be asked
    DRAIN = 10  # {reconnect_in_ms, spread_ms}: connect again after reconnect_in_ms + random * spread_ms


class WireError(Exception):
    """Bytes from the other side break a rule: theirs to mend. `request_id` is theirs, where one could be read."""

    def __init__(self, code: Code, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.request_id = code, message, request_id


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    sender: str = ""  # stamped by the relay: the asker's peer_id, or TRACKER
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Response:
    request_id: str
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    stream: bool = False  # chunks follow, then an End


@dataclass(frozen=True, slots=True)
class Chunk:
    request_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class End:
    request_id: str


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class Error:
    """The relay's outcome of a request, or, with request_id "", what it says of the socket."""

    request_id: str
    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Ping:
    n: int


@dataclass(frozen=True, slots=True)
class Pong:
    n: int


@dataclass(frozen=True, slots=True)
class Hello:
    peer_id: str


@dataclass(frozen=True, slots=True)
class Welcome:
    peer_id: str
    generation: int
    limits: Mapping[str, int]
    relay_addr: str


@dataclass(frozen=True, slots=True)
class Drain:
    reconnect_in_ms: int
    spread_ms: int


ABOUT_A_REQUEST = (Request, Response, Chunk, End, Cancel, Error)  # a union would be made anew for each frame
Answer = Response | Chunk | End
Frame = Request | Answer | Cancel | Error | Ping | Pong | Hello | Welcome | Drain


def is_last(frame: Answer | Error) -> bool:
    """Whether nothing follows it: one answer whole, the end of a streamed one, an error in the middle of one."""
    return isinstance(frame, End | Error) or (isinstance(frame, Response) and not frame.stream)


def code_of(text: str) -> Code:
    """A code of a later version is an internal error to this one."""
    return _CODES.get(text, Code.INTERNAL)


def close_code(code: Code) -> int:
    return CLOSE_UPGRADE if code is Code.UPGRADE else 4000 + STATUS[code]


def limits() -> dict[str, int]:
    """What the relay announces; a client refuses before it sends more."""
    return {
        "max_body_bytes": MAX_BODY_BYTES,
        "max_message_bytes": MAX_MESSAGE_BYTES,
        "max_headers": MAX_HEADERS,
        "max_meta_bytes": MAX_META_BYTES,
        "max_in_flight": MAX_IN_FLIGHT_PER_PEER,
        "max_bytes_in_flight": MAX_BYTES_IN_FLIGHT,
        "max_deadline_ms": int(MAX_DEADLINE_S * 1000),
    }


def error_response(request_id: str, code: Code, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """A failure as an answer: status by code, body {"error": {code, message}}."""
    body = json.dumps({"error": {"code": code.value, "message": message}}).encode()
    return Response(request_id, STATUS[code], {"content-type": "application/json"} | dict(headers or {}), body)


def error_of(status: int, body: bytes) -> tuple[str, str]:
    """(code, message) of an answer with an error status, whoever wrote it."""
    try:
        error = json.loads(body)["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return Code.INTERNAL, f"status {status}: {body[:200].decode('utf-8', 'replace')}"
