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
subprotocol `meshnet.v2`, offered by the client and picked by the relay, and carries binary messages only:

    byte 0 version | byte 1 kind | bytes 2-3 length M of meta, big endian | M bytes meta: a JSON object | body

Unknown keys are ignored, `to` and `from` may be absent. Without the subprotocol a socket speaks version 1, JSON text
(envelope.py), over the same frames. Its first byte is never 2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

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
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.STALE: 409,
    Code.MISSING: 409,
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


class Addressed(NamedTuple):
    """A frame as it was read, with whom it names; sender is a request's own `sender`."""

    frame: Frame
    to: str = ""
    sender: str = ""


def is_last(frame: Answer | Error) -> bool:
    """Whether nothing follows it: one answer whole, the end of a streamed one, an error in the middle of one."""
    return isinstance(frame, End | Error) or (isinstance(frame, Response) and not frame.stream)


def encode_frame(frame: Frame, to: str = "", sender: str = "") -> bytes:
    """The binary message. Raises too_large for meta that no frame can carry."""
    if isinstance(frame, ABOUT_A_REQUEST):
        meta: dict[str, Any] = {"id": frame.request_id}
        if to:
            meta["to"] = to
        body = _fill_in(meta, frame, sender)
    else:
        meta, body = _of_the_socket(frame), b""
    head = _dump(meta).encode()
    if len(head) > MAX_META_LENGTH:
        message = f"meta is {len(head)} bytes; the limit is {MAX_META_LENGTH}"
        raise WireError(Code.TOO_LARGE, message, meta.get("id", ""))
    return b"".join((_BEGINNINGS[type(frame)], len(head).to_bytes(2, "big"), head, body))


def decode_frame(data: bytes) -> Addressed:
    """Any frame of version 2. Raises a WireError, and nothing else; nothing is copied that is over its limit."""
    if not data or data[0] != VERSION:
        spoken = f"version {data[0]}" if data else "no version"
        raise WireError(Code.UPGRADE, f"a frame of {spoken} came; upgrade to version {VERSION}")
    body_at = 4 + int.from_bytes(data[2:4], "big")
    if len(data) < body_at:
        raise WireError(Code.BAD_REQUEST, "the frame is shorter than it says")
    if body_at - 4 > MAX_META_LENGTH:
        raise WireError(Code.TOO_LARGE, f"meta is {body_at - 4} bytes; the limit is {MAX_META_LENGTH}")
    meta = parsed_object(data[4:body_at])
    kind, num_bytes = data[1], len(data) - body_at
    if kind not in _WITH_ID:
        if num_bytes:
            raise WireError(Code.BAD_REQUEST, f"a frame of kind {kind} has no body")
        return Addressed(_about_the_socket(kind, meta))
    request_id = meta.get("id")
    if request_id != "" or kind != Kind.ERROR:
        request_id = checked_id(request_id, "id")
    if num_bytes > MAX_BODY_BYTES:
        message = f"the body is {num_bytes} bytes; the limit is {MAX_BODY_BYTES}"
        raise WireError(Code.TOO_LARGE, message, request_id)
    to, sender = _name(meta, "to", request_id), _name(meta, "from", request_id)
    frame = _about_a_request(kind, meta, request_id, data[body_at:], sender)
    if num_bytes and isinstance(frame, End | Cancel | Error):
        raise WireError(Code.BAD_REQUEST, "a last CHUNK, a CANCEL and an ERROR have no body", request_id)
    return Addressed(frame, to, sender)


def _fill_in(meta: dict[str, Any], frame: Request | Answer | Cancel | Error, sender: str) -> bytes:
    """What a frame about a request says beside its id; gives its body. The most frequent kinds come first."""
    body = b""
    if isinstance(frame, Request):
        sender = sender or frame.sender
        meta |= {"method": frame.method, "path": frame.path, "headers": dict(frame.headers)}
        if frame.deadline_ms is not None:
            meta["deadline_ms"] = frame.deadline_ms
        body = frame.body
    elif isinstance(frame, Response):
        meta |= {"status": frame.status, "headers": dict(frame.headers)}
        if frame.stream:
            meta["stream"] = True
        else:
            body = frame.body
    elif isinstance(frame, Chunk):
        body = frame.data
    elif isinstance(frame, End):
        meta["last"] = True
    elif isinstance(frame, Error):
        meta |= {"code": frame.code, "message": frame.message[:MAX_ERROR_CHARACTERS]}
    if sender:
        meta["from"] = sender
    return body


def _of_the_socket(frame: Ping | Pong | Hello | Welcome | Drain) -> dict[str, Any]:
    match frame:
        case Ping(n) | Pong(n):
            return {"n": n}
        case Hello(peer_id):
            return {"peer_id": peer_id}
        case Welcome(peer_id, generation, limits, relay_addr):
            return {"peer_id": peer_id, "generation": generation, "limits": dict(limits), "relay_addr": relay_addr}
        case Drain(reconnect_in_ms, spread_ms):
            return {"reconnect_in_ms": reconnect_in_ms, "spread_ms": spread_ms}


def _about_a_request(kind: int, meta: dict[str, Any], request_id: str, body: bytes, sender: str) -> Frame:
    if kind == Kind.REQUEST:
        method, path, headers, deadline_ms = checked_request(meta, request_id)
        return Request(request_id, method, path, headers, body, sender, deadline_ms)
    if kind == Kind.RESPONSE:
        status, stream = checked_status(meta, request_id), meta.get("stream") is True
        if stream and body:
            raise WireError(Code.BAD_REQUEST, "a streamed RESPONSE has no body; CHUNKs follow", request_id)
        return Response(request_id, status, checked_headers(meta, request_id, MAX_META_BYTES), body, stream)
    if kind == Kind.CHUNK:
        return End(request_id) if meta.get("last") is True else Chunk(request_id, body)
    if kind == Kind.CANCEL:
        return Cancel(request_id)
    code, message = meta.get("code"), meta.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        raise WireError(Code.BAD_REQUEST, "an ERROR has code and message", request_id)
    return Error(request_id, _CODES.get(code, Code.INTERNAL), message[:MAX_ERROR_CHARACTERS])


def _about_the_socket(kind: int, meta: dict[str, Any]) -> Frame:
    match kind:
        case Kind.PING:
            return Ping(_number(meta, "n"))
        case Kind.PONG:
            return Pong(_number(meta, "n"))
        case Kind.HELLO:
            return Hello(checked_id(meta.get("peer_id"), "peer_id"))
        case Kind.WELCOME:
            limits, relay_addr = meta.get("limits"), meta.get("relay_addr")
            if not isinstance(limits, dict) or not isinstance(relay_addr, str):
                raise WireError(Code.BAD_REQUEST, "a WELCOME has peer_id, generation, limits and relay_addr")
            known = {name: value for name, value in limits.items() if type(value) is int}
            return Welcome(checked_id(meta.get("peer_id"), "peer_id"), _number(meta, "generation"), known, relay_addr)
        case Kind.DRAIN:
            return Drain(_number(meta, "reconnect_in_ms"), _number(meta, "spread_ms"))
    raise WireError(Code.BAD_REQUEST, f"unknown kind {kind} of frame")


def parsed_object(text: str | bytes) -> dict[str, Any]:
    try:
        message = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError):
        raise WireError(Code.BAD_REQUEST, "the message is not JSON") from None
    if not isinstance(message, dict):
        raise WireError(Code.BAD_REQUEST, "the message is not a JSON object")
    return message


def checked_id(value: object, key: str) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise WireError(Code.BAD_REQUEST, f"{key} must be 1 to 128 printable characters without spaces")
    return value


def checked_request(message: dict[str, Any], request_id: str) -> tuple[str, str, dict[str, str], int | None]:
    """(method, path, headers, deadline_ms) of a request of either version."""
    method, path = message.get("method"), message.get("path")
    if not isinstance(method, str) or not isinstance(path, str):
        raise WireError(Code.BAD_REQUEST, "method and path must be strings", request_id)
    headers = checked_headers(message, request_id, room=MAX_META_BYTES - len(method) - len(path))
    deadline_ms = message.get("deadline_ms")
    if deadline_ms is not None and (type(deadline_ms) is not int or deadline_ms <= 0):
        raise WireError(Code.BAD_REQUEST, "deadline_ms must be a positive integer", request_id)
    return method, path, headers, deadline_ms


def checked_status(message: dict[str, Any], request_id: str) -> int:
    status = message.get("status")
    if type(status) is not int or not 100 <= status <= 599:
        raise WireError(Code.BAD_REQUEST, "status must be an integer from 100 to 599", request_id)
    return status


def checked_headers(message: dict[str, Any], request_id: str, room: int) -> dict[str, str]:
    given = message.get("headers") or {}
    if not isinstance(given, dict) or len(given) > MAX_HEADERS:
        raise WireError(Code.BAD_REQUEST, f"headers must be an object of at most {MAX_HEADERS} entries", request_id)
    names, values = "\n".join(given).lower(), _joined(given.values())
    # One search over all names and one over all values, instead of two for each header.
    is_each_one_line = names.count("\n") == values.count("\n") == max(0, len(given) - 1)
    if not is_each_one_line or not _HEADER_NAMES.fullmatch(names) or not _HEADER_VALUES.fullmatch(values):
        bad = next((name for name, value in given.items() if not _is_header(name, value)), "")
        raise WireError(Code.BAD_REQUEST, f"header {bad[:40]!r} isn't text or has a bad character", request_id)
    if len(names) + len(values) - 2 * max(0, len(given) - 1) > room:
        raise WireError(Code.TOO_LARGE, f"method, path and headers exceed {MAX_META_BYTES} bytes", request_id)
    return dict(zip(names.split("\n"), given.values(), strict=False))


def _joined(values: Iterable[Any]) -> str:
    try:
        return "\n".join(values)
    except TypeError:
        return "\0"  # no header value


def _is_header(name: str, value: object) -> bool:
    is_name = bool(name) and _HEADER_NAMES.fullmatch(name.lower()) and "\n" not in name
    return bool(is_name and isinstance(value, str) and "\n" not in value and _HEADER_VALUES.fullmatch(value))


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


def _name(meta: dict[str, Any], key: str, request_id: str) -> str:
    value = meta.get(key, "")
    if value == "":
        return ""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise WireError(Code.BAD_REQUEST, f"{key} must be a peer_id", request_id)
    return value


def _number(meta: dict[str, Any], key: str) -> int:
    value = meta.get(key)
    if type(value) is not int or not 0 <= value < 2**53:
        raise WireError(Code.BAD_REQUEST, f"{key} must be an integer from 0 to 2^53 - 1")
    return value


MAX_ERROR_CHARACTERS = 500
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_HEADER_NAMES = re.compile(r"(?:[a-z0-9!#$%&'*+.^_`|~-]{1,64}(?:\n[a-z0-9!#$%&'*+.^_`|~-]{1,64})*)?")
_HEADER_VALUES = re.compile(r"[\x20-\x7e\t\n]*")
_CODES = {code.value: code for code in Code}
_WITH_ID = frozenset({Kind.REQUEST, Kind.RESPONSE, Kind.CHUNK, Kind.CANCEL, Kind.ERROR})
_KINDS = {
    Request: Kind.REQUEST,
    Response: Kind.RESPONSE,
    Chunk: Kind.CHUNK,
    End: Kind.CHUNK,
    Cancel: Kind.CANCEL,
    Error: Kind.ERROR,
    Ping: Kind.PING,
    Pong: Kind.PONG,
    Hello: Kind.HELLO,
    Welcome: Kind.WELCOME,
    Drain: Kind.DRAIN,
}
_BEGINNINGS = {frame_type: bytes((VERSION, kind)) for frame_type, kind in _KINDS.items()}
_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
