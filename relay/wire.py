"""Envelopes that cross the relay, their limits and their errors. Standard library only.

The relay carries requests from a caller to a peer, and answers back. Version 1 is JSON text messages:

    caller -> /rpc/<peer_id>   {request_id, method, path, headers, body_base64 | body, deadline_ms?}
    relay  -> peer on /ws      the same with type "relay-http-request", the relay's own request_id, and `from`
    peer   -> relay -> caller  {request_id, status, headers, body_base64 | body}                one answer, or
                               {request_id, status, headers, stream: true}, {request_id, chunk | chunk_base64}…,
                               {request_id, end: true}                                          a streamed one
    relay  -> peer             {type: "relay-http-cancel", request_id}      the caller has gone, or its time is up
    relay  -> caller           {request_id, status, body: {"error": {code, message}}}           at any moment

A peer opens /ws, says {type: "register", peer_id} and hears {type: "registered", peer_id, relay_addr, limits}. Both
doors say {type: "error", status, message, request_id: "", body} about no request in particular: the socket's
credential, its registration, a message that can't be read; a close code of 4000 + status follows when it is the end.
Text travels in `body` and `chunk`, anything else in base64. Header names are lower-cased on the way in. Unknown keys
are ignored. Version 2 (binary frames, one socket for both directions) has its first byte reserved: 0x02 never starts
a JSON text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PROTOCOL_VERSION = 1  # what a node and a tracker must agree on; a node of another version is told to upgrade
WIRE_VERSIONS = (1,)  # relay wire versions this program speaks

KIB = 1024
MAX_BODY_BYTES = 1024 * KIB  # decoded; prefill is cut into chunks of tokens that stay below it
MAX_HEADERS = 32
MAX_META_BYTES = 8 * KIB  # method, path and headers together
LARGE_TEXT_BYTES = 64 * KIB  # from here on text goes as base64 where JSON's escapes would take more room than that
MAX_MESSAGE_BYTES = 4 * 2 * MAX_BODY_BYTES // 3 + 64 * KIB  # twice the body, base64: one a little over gets its 413
MAX_FIRST_MESSAGE_BYTES = 8 * KIB  # before a peer has registered
REGISTER_DEADLINE_S = 5.0
MAX_IN_FLIGHT_PER_PEER = 64  # requests a peer has been asked and hasn't answered
MAX_IN_FLIGHT_PER_CALLER = 64  # over all its sockets
MAX_BYTES_IN_FLIGHT = 8 * 1024 * KIB  # of those requests: what a peer that reads nothing, or one caller, can pin here
MAX_SOCKETS_PER_CALLER = 256
DEFAULT_DEADLINE_S = 120.0
MAX_DEADLINE_S = 600.0
PING_INTERVAL_S = 20  # the server's own pings: on v1 sockets they alone tell the living from the dead
PING_TIMEOUT_S = 15

TRACKER = "tracker"  # the `from` of requests that the tracker makes itself; no peer_id can be this

_SERVED = frozenset(
    {
        ("POST", "/forward"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/health"),
    }
)
_SESSION_PATH = re.compile(r"/sessions/([0-9a-f]{32})")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_STAYS_HERE = re.compile(
    r"connection|keep-alive|te|trailer|transfer-encoding|upgrade|host|cookie|set-cookie|authorization|content-length"
    r"|forwarded|x-real-ip|(proxy-|x-forwarded-).*"
)
_dump = json.JSONEncoder(separators=(",", ":")).encode
_TEXT_TYPES = ("application/json", "text/")


class Code(StrEnum):
    """Error codes, in envelopes, in the API's errors and in the logs."""

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
    sender: str = ""  # stamped by the relay: the caller's peer_id, or TRACKER
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


Answer = Response | Chunk | End
Frame = Request | Answer | Cancel


def is_last(answer: Answer) -> bool:
    """Whether nothing follows it: one answer whole, the end of a streamed one, an error in the middle of one."""
    return isinstance(answer, End) or (isinstance(answer, Response) and not answer.stream)


def encode(frame: Frame, *, to_peer: bool = False) -> str:
    """The v1 text message of a frame. `to_peer`: as the relay sends a request to a peer, with `type` and `from`."""
    message: dict[str, Any] = {"request_id": frame.request_id}
    data = ""
    match frame:
        case Request():
            message |= {"method": frame.method, "path": frame.path, "headers": dict(frame.headers)}
            if frame.deadline_ms is not None:
                message["deadline_ms"] = frame.deadline_ms
            if to_peer:
                message |= {"type": "relay-http-request", "from": frame.sender}
            data = _body_member(frame.body, frame.headers)
        case Response():
            message |= {"status": frame.status, "headers": dict(frame.headers)}
            if frame.stream:
                message["stream"] = True
            else:
                data = _body_member(frame.body, frame.headers)
        case Chunk():
            data = _data_member("chunk", frame.data)
        case End():
            message["end"] = True
        case Cancel():
            message["type"] = "relay-http-cancel"
    return f"{_dump(message)[:-1]},{data}}}" if data else _dump(message)


def decode_request(text: str) -> Request:
    """A request from a caller, or from the relay to a peer. Checks everything but whether it may be served."""
    message = _object(text)
    request_id = _request_id(message)
    method, path = message.get("method"), message.get("path")
    if not isinstance(method, str) or not isinstance(path, str):
        raise WireError(Code.BAD_REQUEST, "method and path must be strings", request_id)
    headers = _headers(message, request_id, room=MAX_META_BYTES - len(method) - len(path))
    deadline_ms = message.get("deadline_ms")
    if deadline_ms is not None and (type(deadline_ms) is not int or deadline_ms <= 0):
        raise WireError(Code.BAD_REQUEST, "deadline_ms must be a positive integer", request_id)
    sender = message.get("from", "")
    if not isinstance(sender, str):
        raise WireError(Code.BAD_REQUEST, "from must be a string", request_id)
    return Request(request_id, method, path, headers, _bytes(message, "body", request_id), sender, deadline_ms)


def decode_answer(text: str) -> Answer:
    """An answer from a peer, or from the relay to a caller. One with request_id "" speaks of the socket as a whole."""
    message = _object(text)
    if message.get("type") == "error":
        return _error(message)
    request_id = _request_id(message)
    if "status" in message:
        status = message["status"]
        if type(status) is not int or not 100 <= status <= 599:
            raise WireError(Code.BAD_REQUEST, "status must be an integer from 100 to 599", request_id)
        stream = message.get("stream") is True
        body = b"" if stream else _bytes(message, "body", request_id)
        return Response(request_id, status, _headers(message, request_id, MAX_META_BYTES), body, stream)
    if message.get("end") is True:
        return End(request_id)
    if "chunk" in message or "chunk_base64" in message:
        return Chunk(request_id, _bytes(message, "chunk", request_id))
    raise WireError(Code.BAD_REQUEST, "an answer has status, chunk, chunk_base64 or end", request_id)


def decode_peer(text: str) -> Request | Cancel:
    """What the relay sends a registered peer."""
    message = _object(text)
    if message.get("type") == "relay-http-cancel":
        return Cancel(_request_id(message))
    if message.get("type") == "relay-http-request":
        return decode_request(text)
    raise WireError(Code.BAD_REQUEST, f"unknown message type {str(message.get('type'))[:40]!r}")


def encode_error(code: Code, message: str) -> str:
    """What a socket hears about no request in particular: a reader of envelopes and one of {type} both understand."""
    envelope = {"type": "error", "request_id": "", "status": STATUS[code], "message": message}
    return _dump(envelope | {"body": error_response("", code, message).body.decode()})


def close_code(code: Code) -> int:
    return CLOSE_UPGRADE if code is Code.UPGRADE else 4000 + STATUS[code]


def decode_register(text: str) -> str:
    """The peer_id that a peer's first message names."""
    message = _object(text)
    peer_id = message.get("peer_id")
    if message.get("type") != "register" or not isinstance(peer_id, str):
        raise WireError(Code.BAD_REQUEST, 'the first message must be {"type":"register","peer_id":"…"}')
    return peer_id


def encode_registered(peer_id: str, relay_addr: str) -> str:
    welcome = {"type": "registered", "peer_id": peer_id, "relay_addr": relay_addr, "limits": limits()}
    return _dump(welcome)


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
    """The envelope of a failure: status by code, body {"error": {code, message}}."""
    body = json.dumps({"error": {"code": code.value, "message": message}}).encode()
    return Response(request_id, STATUS[code], {"content-type": "application/json"} | dict(headers or {}), body)


def error_of(status: int, body: bytes) -> tuple[str, str]:
    """(code, message) of an answer with an error status, whoever wrote it."""
    try:
        error = json.loads(body)["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return Code.INTERNAL, f"status {status}: {body[:200].decode('utf-8', 'replace')}"


def check_served(method: str, path: str) -> str | None:
    """Raises 403 unless a node serves this method and exact path; gives the session id of a /sessions/ path."""
    if (method, path) in _SERVED:
        return None
    found = _SESSION_PATH.fullmatch(path)
    if method == "DELETE" and found:
        return found[1]
    raise WireError(Code.FORBIDDEN, f"{method[:16]} {path[:80]} is not served; a node serves {served_paths()}")


def served_paths() -> str:
    return ", ".join(sorted(f"{method} {path}" for method, path in _SERVED)) + ", DELETE /sessions/<32 hex digits>"


def crossing(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that may cross: none that belongs to one connection, names a user or claims an origin."""
    return {name: value for name, value in headers.items() if not _STAYS_HERE.fullmatch(name)}


def _object(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError(Code.BAD_REQUEST, "the message is not JSON") from None
    if not isinstance(message, dict):
        raise WireError(Code.BAD_REQUEST, "the message is not a JSON object")
    return message


def _request_id(message: dict[str, Any]) -> str:
    request_id = message.get("request_id")
    if not isinstance(request_id, str) or not _REQUEST_ID.fullmatch(request_id):
        raise WireError(Code.BAD_REQUEST, "request_id must be 1 to 128 printable characters without spaces")
    return request_id


def _error(message: dict[str, Any]) -> Response:
    """An error that speaks of the whole socket, whether it came with an envelope's body or as {status, message}."""
    status, body = message.get("status"), message.get("body")
    if type(status) is not int or not 400 <= status <= 599:
        raise WireError(Code.BAD_REQUEST, "the status of an error must be an integer from 400 to 599")
    if not isinstance(body, str):
        code = next((code for code, number in STATUS.items() if number == status), Code.INTERNAL)
        body = error_response("", code, str(message.get("message"))).body.decode()
    return Response("", status, {"content-type": "application/json"}, body.encode(errors="replace"))


def _headers(message: dict[str, Any], request_id: str, room: int) -> dict[str, str]:
    given = message.get("headers") or {}
    if not isinstance(given, dict) or len(given) > MAX_HEADERS:
        raise WireError(Code.BAD_REQUEST, f"headers must be an object of at most {MAX_HEADERS} entries", request_id)
    headers: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if not isinstance(value, str) or not _HEADER_NAME.fullmatch(lowered) or not _HEADER_VALUE.fullmatch(value):
            raise WireError(Code.BAD_REQUEST, f"header {name[:40]!r} isn't text or has a bad character", request_id)
        headers[lowered] = value
        room -= len(lowered) + len(value)
    if room < 0:
        raise WireError(Code.TOO_LARGE, f"method, path and headers exceed {MAX_META_BYTES} bytes", request_id)
    return headers


def _bytes(message: dict[str, Any], key: str, request_id: str) -> bytes:
    """The bytes under `key` (text) or `key`_base64; both absent: empty."""
    encoded, text = message.get(f"{key}_base64"), message.get(key)
    try:
        if encoded is not None:
            data = base64.b64decode(encoded, validate=True)
        else:
            data = (text if text is not None else "").encode()
    except (ValueError, TypeError, AttributeError):
        raise WireError(Code.BAD_REQUEST, f"{key}_base64 is not base64, or {key} not text", request_id) from None
    if len(data) > MAX_BODY_BYTES:
        raise WireError(Code.TOO_LARGE, f"{key} is {len(data)} bytes; the limit is {MAX_BODY_BYTES}", request_id)
    return data


def _body_member(body: bytes, headers: Mapping[str, str]) -> str:
    if not body:
        return ""
    if headers.get("content-type", "").startswith(_TEXT_TYPES):
        return _data_member("body", body)
    return _base64_member("body", body)


def _data_member(key: str, data: bytes) -> str:
    """Under `key` as text, under `key`_base64 where it isn't text or its escapes would outgrow the message limit."""
    try:
        text = json.dumps(data.decode())
    except UnicodeDecodeError:
        return _base64_member(key, data)
    is_short = len(data) < LARGE_TEXT_BYTES or len(text) <= 4 * len(data) // 3
    return f'"{key}":{text}' if is_short else _base64_member(key, data)


def _base64_member(key: str, data: bytes) -> str:
    """Already JSON: to look for escapes in a megabyte that has none takes longer than all the rest."""
    return f'"{key}_base64":"{base64.b64encode(data).decode()}"'
