"""Version 2 of the wire as bytes: frames to binary messages and back. relay/wire.py is the page."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from relay.checked import ID, checked_headers, checked_id, checked_request, checked_status, parsed_object
from relay.wire import (
    ABOUT_A_REQUEST,
    MAX_BODY_BYTES,
    MAX_META_BYTES,
    MAX_META_LENGTH,
    VERSION,
    Answer,
    Cancel,
    Chunk,
    Code,
    Drain,
    End,
    Error,
    Frame,
    Hello,
    Kind,
    Ping,
    Pong,
    Request,
    Response,
    Welcome,
    WireError,
    code_of,
)

MAX_ERROR_CHARACTERS = 500
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


class Addressed(NamedTuple):
    """A frame as it was read, with whom it names; sender is a request's own `sender`."""

    frame: Frame
    to: str = ""
    sender: str = ""


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
    return Error(request_id, code_of(code), message[:MAX_ERROR_CHARACTERS])


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


def _name(meta: dict[str, Any], key: str, request_id: str) -> str:
    value = meta.get(key, "")
    if value == "":
        return ""
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise WireError(Code.BAD_REQUEST, f"{key} must be a peer_id", request_id)
    return value


def _number(meta: dict[str, Any], key: str) -> int:
    value = meta.get(key)
    if type(value) is not int or not 0 <= value < 2**53:
        raise WireError(Code.BAD_REQUEST, f"{key} must be an integer from 0 to 2^53 - 1")
    return value
