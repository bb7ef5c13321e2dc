"""The two doors: /ws, where a peer registers, answers and asks, and /rpc/<peer_id>, where a caller asks one peer."""

from __future__ import annotations

import asyncio
import logging

from django.conf import settings

from relay import codec, envelope, metrics, wire
from relay.doors import Door, Message
from relay.hub import Edge, hub
from relay.links import Link
from relay.wire import Code, WireError

logger = logging.getLogger(__name__)

PAUSE_STEP_S = 0.1  # how late it may be noticed that the connection to be replaced has ended by itself


class PeerConsumer(Door):
    """/ws: a peer registers, is asked, answers; on version 2 it asks too."""

    max_early_bytes = wire.MAX_FIRST_MESSAGE_BYTES
    _pause: asyncio.TimerHandle | None = None

    def heard_text(self, link: Link[Edge], text: str) -> None:
        if not link.generation:
            return self._register(link, text)
        try:
            hub.answer(link, envelope.decode_answer(text))
        except WireError as error:
            logger.warning("peer %s sent what can't be read: %s", link.peer_id, error.message, extra=fields_of(link))
            hub.malformed(link, error)
            if not error.request_id:
                hub.tell(link, wire.Error("", error.code, error.message))

    def heard_frame(self, link: Link[Edge], data: bytes) -> None:
        if not link.generation:
            return self._register(link, data)
        try:
            frame, to, _ = codec.decode_frame(data)
        except WireError as error:
            return unreadable(self, link, data, error)
        if isinstance(frame, wire.Request):
            return hub.request(link, to, frame)
        passed(self, link, frame)

    def left(self, link: Link[Edge]) -> None:
        if self._pause:
            self._pause.cancel()
        if link.generation:
            fields = fields_of(link) | {"bytes_in": link.bytes_in, "bytes_out": link.bytes_out}
            logger.info("peer %s has left (registration %d)", link.peer_id, link.generation, extra=fields)

    def _register(self, link: Link[Edge], message: Message) -> None:
        if len(message) > wire.MAX_FIRST_MESSAGE_BYTES:
            return self.refuse(Code.TOO_LARGE, f"the first message exceeds {wire.MAX_FIRST_MESSAGE_BYTES} bytes")
        if self._pause:
            return self.refuse(Code.BAD_REQUEST, "the registration isn't answered yet; say nothing before it is")
        try:
            peer_id = envelope.decode_register(message) if isinstance(message, str) else hello(message)
        except WireError as error:
            return self.refuse(error.code, error.message)
        if peer_id != link.peer_id:
            return self.refuse(Code.FORBIDDEN, "the credential belongs to another peer_id")
        self.settled()
        self._welcome(link)

    def _welcome(self, link: Link[Edge]) -> None:
        """At once, or when connections of this peer no longer replace each other in quick succession."""
        if self.is_closing:
            return
        if hub.is_draining:
            return self.refuse(Code.DRAINING, "the relay is about to stop; connect again")
        peer_id, pause_s = link.peer_id, hub.pause_s(link.peer_id)
        if pause_s:
            self._pause = asyncio.get_running_loop().call_later(min(pause_s, PAUSE_STEP_S), self._welcome, link)
            return
        hub.register(link)
        text = "peer %s is here from %s (registration %d)"
        logger.info(text, peer_id, self.address, link.generation, extra=fields_of(link))
        if self.version == 2:
            return welcome(link, peer_id)
        self.say(envelope.encode_registered(peer_id, relay_addr(peer_id)))


class RpcConsumer(Door):
    """/rpc/<peer_id>: a caller asks one peer, as many requests as it likes."""

    max_early_bytes = wire.MAX_MESSAGE_BYTES

    def admitted(self, link: Link[Edge]) -> None:
        self.settled()
        if self.version == 2:
            welcome(link, self._callee)

    def heard_text(self, link: Link[Edge], text: str) -> None:
        """`handle_rpc` of the record."""
        try:
            request = envelope.decode_request(text)
        except WireError as error:
            metrics.outcomes[error.code] += 1
            return hub.tell(link, wire.Error(error.request_id, error.code, error.message))
        hub.request(link, self._callee, request)

    def heard_frame(self, link: Link[Edge], data: bytes) -> None:
        try:
            frame, to, _ = codec.decode_frame(data)
        except WireError as error:
            return unreadable(self, link, data, error)
        if not isinstance(frame, wire.Request):
            return passed(self, link, frame)
        if to not in ("", self._callee):
            metrics.outcomes[Code.FORBIDDEN] += 1
            message = f"this socket asks {self._callee} only; /ws asks any peer"
            return hub.tell(link, wire.Error(frame.request_id, Code.FORBIDDEN, message))
        hub.request(link, self._callee, frame)

    @property
    def _callee(self) -> str:
        return str(self.scope["url_route"]["kwargs"]["peer_id"])


class NoDoor(Door):
    """Any other path: the refusal is for its sender to read, not for our log to fill with tracebacks."""

    max_early_bytes = wire.MAX_FIRST_MESSAGE_BYTES

    def _connected(self) -> None:
        self.address = str((self.scope.get("client") or ("",))[0])
        self.outbox.accept(next(iter(self.scope.get("subprotocols", ())), None))
        self.refuse(
            Code.NOT_FOUND, "no socket is served here; a node registers at /ws, a caller asks at /rpc/<peer_id>"
        )


def passed(door: Door, link: Link[Edge], frame: wire.Frame) -> None:
    """What either door hears on version 2, but for requests."""
    match frame:
        case wire.Response() | wire.Chunk() | wire.End():
            hub.answer(link, frame)
        case wire.Cancel(request_id):
            hub.cancel(link, request_id)
        case wire.Ping(n):
            door.outbox.put_pong(codec.encode_frame(wire.Pong(n)))
        case wire.Pong(n):
            hub.pong(link, n)
            door.outbox.credited()
        case wire.Error(request_id, code, message) if request_id:
            hub.malformed(link, WireError(code, message, request_id))
        case _:
            what = f"{type(frame).__name__.upper()} isn't for the relay to hear now"
            hub.tell(link, wire.Error("", Code.BAD_REQUEST, what))


def unreadable(door: Door, link: Link[Edge], data: bytes, error: WireError) -> None:
    """An answer that can't be read fails its request; anything else is told its sender."""
    logger.warning("peer %s sent what can't be read: %s", link.peer_id, error.message, extra=fields_of(link))
    if error.code is Code.UPGRADE:
        return door.refuse(error.code, error.message)
    kind = data[1] if len(data) > 1 else None
    if kind in (wire.Kind.RESPONSE, wire.Kind.CHUNK):
        return hub.malformed(link, error)
    metrics.outcomes[error.code] += kind == wire.Kind.REQUEST
    hub.tell(link, wire.Error(error.request_id, error.code, error.message))


def fields_of(link: Link[Edge]) -> dict[str, object]:
    """Of a log line about a connection, for LOG_FORMAT=json."""
    return {
        "peer_id": link.peer_id,
        "address": link.address,
        "version": link.version,
        "generation": link.generation,
    }


def hello(data: bytes) -> str:
    """The peer_id that a version 2 socket's first message names."""
    frame = codec.decode_frame(data).frame
    if not isinstance(frame, wire.Hello):
        raise WireError(Code.BAD_REQUEST, "the first frame must be HELLO {peer_id}")
    return frame.peer_id


def welcome(link: Link[Edge], peer_id: str) -> None:
    hub.tell(link, wire.Welcome(link.peer_id, link.generation, wire.limits(), relay_addr(peer_id)))


def relay_addr(peer_id: str) -> str:
    return f"{settings.RELAY_URL}/rpc/{peer_id}"
