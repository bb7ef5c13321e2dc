"""Version 1 of the wire: JSON text messages, as the record has them. At the edge only; the relay thinks in frames.

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
are ignored. Bodies, headers and codes have the limits of wire.py. Standard library only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from relay.checked import checked_headers, checked_id, checked_request, checked_status, parsed_object
from relay.wire import (
    KIB,
    MAX_BODY_BYTES,
    MAX_META_BYTES,
    STATUS,
    Answer,
    Cancel,
    Chunk,
    Code,
    End,
    Error,
    Frame,
    Request,
    Response,
    WireError,
    error_response,
    limits,
)

LARGE_TEXT_BYTES = 64 * KIB  # from here on text goes as base64 where JSON's escapes would take more room than that

MAX_QUOTES = 1000  # of a long message; an envelope with every header has some 150

_dump = json.JSONEncoder(separators=(",", ":")).encode
_TEXT_TYPES = ("application/json", "text/")


def encode(frame: Frame, *, to_peer: bool = False) -> str:
    """The text message of a frame. `to_peer`: as the relay sends a request to a peer, with `type` and `from`."""
    if isinstance(frame, Error):
        if not frame.request_id:
            return encode_error(frame.code, frame.message)
        frame = error_response(frame.request_id, frame.code, frame.message)
    assert isinstance(frame, Request | Response | Chunk | End | Cancel), "only version 2 has it"
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
    message = _parsed(text)
    request_id = _request_id(message)
    method, path, headers, deadline_ms = checked_request(message, request_id)
    sender = message.get("from", "")
    if not isinstance(sender, str):
        raise WireError(Code.BAD_REQUEST, "from must be a string", request_id)
    return Request(request_id, method, path, headers, _bytes(message, "body", request_id), sender, deadline_ms)


def decode_answer(text: str) -> Answer:
    """An answer from a peer, or from the relay to a caller. One with request_id "" speaks of the socket as a whole."""
    message = _parsed(text)
    if message.get("type") == "error":
        return _error(message)
    request_id = _request_id(message)
    if "status" in message:
        status = checked_status(message, request_id)
        stream = message.get("stream") is True
        body = b"" if stream else _bytes(message, "body", request_id)
        return Response(request_id, status, checked_headers(message, request_id, MAX_META_BYTES), body, stream)
    if message.get("end") is True:
        return End(request_id)
    if "chunk" in message or "chunk_base64" in message:
        return Chunk(request_id, _bytes(message, "chunk", request_id))
    raise WireError(Code.BAD_REQUEST, "an answer has status, chunk, chunk_base64 or end", request_id)


def decode_peer(text: str) -> Request | Cancel:
    """What the relay sends a registered peer."""
    message = _parsed(text)
    if message.get("type") == "relay-http-cancel":
        return Cancel(_request_id(message))
    if message.get("type") == "relay-http-request":
        return decode_request(text)
    raise WireError(Code.BAD_REQUEST, f"unknown message type {str(message.get('type'))[:40]!r}")


def encode_error(code: Code, message: str) -> str:
    """What a socket hears about no request in particular: a reader of envelopes and one of {type} both understand."""
    envelope = {"type": "error", "request_id": "", "status": STATUS[code], "message": message}
    return _dump(envelope | {"body": error_response("", code, message).body.decode()})


def decode_register(text: str) -> str:
    """The peer_id that a peer's first message names."""
    message = _parsed(text)
    peer_id = message.get("peer_id")
    if message.get("type") != "register" or not isinstance(peer_id, str):
        raise WireError(Code.BAD_REQUEST, 'the first message must be {"type":"register","peer_id":"…"}')
    return peer_id


def encode_registered(peer_id: str, relay_addr: str) -> str:
    welcome = {"type": "registered", "peer_id": peer_id, "relay_addr": relay_addr, "limits": limits()}
    return _dump(welcome)


def _parsed(text: str) -> dict[str, Any]:
    """A long message is long because of one string: a megabyte of brackets would become a hundred of objects."""
    if len(text) > LARGE_TEXT_BYTES:
        strings = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
        if strings.count('"') > MAX_QUOTES or sum(map(len, strings.split('"')[::2])) > MAX_META_BYTES:
            raise WireError(Code.BAD_REQUEST, "the message is long, and not because of its body")
    return parsed_object(text)


def _request_id(message: dict[str, Any]) -> str:
    return checked_id(message.get("request_id"), "request_id")


def _error(message: dict[str, Any]) -> Response:
    """An error that speaks of the whole socket, whether it came with an envelope's body or as {status, message}."""
    status, body = message.get("status"), message.get("body")
    if type(status) is not int or not 400 <= status <= 599:
        raise WireError(Code.BAD_REQUEST, "the status of an error must be an integer from 400 to 599")
    if not isinstance(body, str):
        code = next((code for code, number in STATUS.items() if number == status), Code.INTERNAL)
        body = error_response("", code, str(message.get("message"))).body.decode()
    return Response("", status, {"content-type": "application/json"}, body.encode(errors="replace"))


def _bytes(message: dict[str, Any], key: str, request_id: str) -> bytes:
    """The bytes under `key` (text) or `key`_base64; both absent: empty."""
    encoded, text = message.get(f"{key}_base64"), message.get(key)
    given = encoded if encoded is not None else "" if text is None else text
    try:
        least_bytes = len(given) * 3 // 4 - 2 if encoded is not None else len(given)
        if least_bytes <= MAX_BODY_BYTES:
            data = base64.b64decode(given, validate=True) if encoded is not None else given.encode()
            least_bytes = len(data)
    except (ValueError, TypeError, AttributeError):
        raise WireError(Code.BAD_REQUEST, f"{key}_base64 is not base64, or {key} not text", request_id) from None
    if least_bytes > MAX_BODY_BYTES:
        raise WireError(Code.TOO_LARGE, f"{key} is {least_bytes} bytes; the limit is {MAX_BODY_BYTES}", request_id)
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
