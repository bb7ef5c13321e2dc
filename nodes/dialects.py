"""The two versions of the wire as a node's connection speaks them: how it registers, what it writes, what it reads."""

from __future__ import annotations

import json
from typing import Protocol

from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.framing import Outgoing
from relay import codec, envelope, wire
from relay.wire import STATUS, Code, Error, Frame, Hello, Ping, Welcome, WireError

_UNREADABLE = "the relay's answer to the registration can't be read"


class Dialect(Protocol):
    version: int

    def register(self, connection: Connection, peer_id: str, deadline: Deadline) -> None:
        """Until the relay has said welcome. Raises ConnectionFailed, TimeoutError."""

    def encode(self, frame: Frame) -> Outgoing: ...

    def read(self, message: str | bytes) -> Frame:
        """Raises WireError."""


class TextDialect:
    """Version 1: JSON text; the WebSocket's own pings tell whether the relay is there."""

    version = 1

    def register(self, connection: Connection, peer_id: str, deadline: Deadline) -> None:
        connection.send(json.dumps({"type": "register", "peer_id": peer_id}), deadline)
        message = _next_message(connection, deadline)
        try:
            is_welcome = json.loads(message)["type"] == "registered"
        except (ValueError, KeyError, TypeError):
            is_welcome = False
        if not is_welcome:
            refusal = _error_in(_text(message))
            raise refused(refusal) if refusal else ConnectionFailed(_UNREADABLE)

    def encode(self, frame: Frame) -> Outgoing:
        return Outgoing.ping(b"%d" % frame.n) if isinstance(frame, Ping) else Outgoing.of(envelope.encode(frame))

    def read(self, message: str | bytes) -> Frame:
        text = _text(message)
        try:
            return envelope.decode_peer(text)
        except WireError:
            found = _error_in(text)
            if found is None:
                raise
            return found


class FrameDialect:
    """Version 2: binary frames."""

    version = 2

    def register(self, connection: Connection, peer_id: str, deadline: Deadline) -> None:
        connection.send(codec.encode_frame(Hello(peer_id)), deadline)
        try:
            frame = self.read(_next_message(connection, deadline))
        except WireError:
            raise ConnectionFailed(_UNREADABLE) from None
        if isinstance(frame, Error):
            raise refused(frame)
        if not isinstance(frame, Welcome):
            raise ConnectionFailed(_UNREADABLE)

    def encode(self, frame: Frame) -> Outgoing:
        return Outgoing.of(codec.encode_frame(frame))

    def read(self, message: str | bytes) -> Frame:
        if isinstance(message, str):
            raise WireError(Code.BAD_REQUEST, "a text message came on a socket of version 2")
        return codec.decode_frame(message).frame


def spoken_on(connection: Connection) -> Dialect:
    """What the relay has picked of what was offered."""
    return FrameDialect() if connection.subprotocol == wire.SUBPROTOCOL else TextDialect()


def refused(error: Error) -> ConnectionFailed:
    """What the relay says of the whole socket ends it."""
    return ConnectionFailed(f"the relay refuses: {error.message}", STATUS[error.code])


def _next_message(connection: Connection, deadline: Deadline) -> str | bytes:
    while (message := connection.receive(deadline)) is None:
        pass
    return message


def _text(message: str | bytes) -> str:
    return message if isinstance(message, str) else message.decode("utf-8", "replace")


def _error_in(text: str) -> Error | None:
    try:
        answer = envelope.decode_answer(text)
    except WireError:
        return None
    if not isinstance(answer, wire.Response) or answer.request_id:
        return None
    code, message = wire.error_of(answer.status, answer.body)
    return Error("", wire.code_of(code), message)
