"""The two doors: /ws, where a peer registers and answers, and /rpc/<peer_id>, where a caller asks. Version 1.

Handlers never wait: they run one after another for a socket. What has to wait, checking a credential, is a task, and
what arrives meanwhile is held, within a bound. Everything is undone in one `finally`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from channels.consumer import AsyncConsumer
from django.conf import settings

from relay import auth, envelope, metrics, wire
from relay.handshake import check_origin
from relay.hub import Edge, hub
from relay.links import Link
from relay.outbox import Outbox
from relay.wire import Code, WireError

logger = logging.getLogger(__name__)


class Door(AsyncConsumer):
    """A socket from handshake to close: accepted always, so that a refusal can be read; then admitted or refused."""

    max_early_bytes: int  # what may arrive before the socket is admitted

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.link: Link[Edge] | None = None
        self.address = ""
        self.is_closing = False
        self._early: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._deadline: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Instead of the base's, which makes a channel for each socket and a task for each message."""
        self.scope = scope
        self._tasks.append(asyncio.create_task(self.outbox.run(send)))
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                if message["type"] == "websocket.connect":
                    self._connected()
                else:
                    self._received(message.get("text"))
        finally:
            self.settled()
            for task in self._tasks:
                task.cancel()
            if self.link:
                hub.detach(self.link)
                self.left(self.link)

    def heard(self, link: Link[Edge], text: str) -> None:
        raise NotImplementedError

    def admitted(self) -> None:
        """The credential is good."""

    def left(self, link: Link[Edge]) -> None:
        """The socket is gone, and whatever hung on it."""

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        self.say(envelope.encode(frame, to_peer=True))

    def say(self, text: str) -> None:
        if self.is_closing or self.outbox.put(text):
            return
        metrics.sockets["overflowed"] += 1
        self.close(Code.RATE_LIMITED, "you read too slowly")

    def close(self, code: Code, message: str) -> None:
        """Says why and closes. From here on nothing is read, and nothing in flight waits for this socket."""
        if self.is_closing:
            return
        self.is_closing = True
        self.settled()
        self.outbox.end(envelope.encode_error(code, message), wire.close_code(code))
        if self.link:
            hub.detach(self.link)

    def settled(self) -> None:
        """The socket has shown who it is; it may stay."""
        if self._deadline:
            self._deadline.cancel()

    def _connected(self) -> None:
        self.outbox.accept()
        self._deadline = asyncio.get_running_loop().call_later(
            wire.REGISTER_DEADLINE_S,
            self._refuse,
            Code.DEADLINE,
            f"no registration in {wire.REGISTER_DEADLINE_S:.0f} s",
        )
        headers = self.scope["headers"]
        self.address = str((self.scope.get("client") or ("",))[0])
        try:
            check_origin(headers)
            credential = auth.bearer(headers)
            identity = auth.authenticator.known(credential)
        except WireError as error:
            return self._refuse(error.code, error.message)
        if identity:
            return self._admit(identity)
        self._tasks.append(asyncio.create_task(self._identify(credential)))

    async def _identify(self, credential: str) -> None:
        try:
            identity = await auth.authenticator.identify(credential, self.address)
        except WireError as error:
            return self._refuse(error.code, error.message)
        except Exception:
            logger.exception("a credential could not be checked")
            return self._refuse(Code.BUSY, "credentials can't be checked now; try again")
        if not self.is_closing:
            self._admit(identity)

    def _admit(self, identity: auth.Identity) -> None:
        if not identity.approved:
            return self._refuse(Code.FORBIDDEN, identity.reason or "the node waits for approval")
        try:
            self.link = hub.attach(identity.peer_id, identity.scope, self)
        except WireError as error:
            return self._refuse(error.code, error.message)
        self.admitted()
        early, self._early = self._early, []
        for text in early:
            if not self.is_closing:
                self.heard(self.link, text)

    def _refuse(self, code: Code, message: str) -> None:
        metrics.sockets["refused"] += 1
        logger.warning("refused %.80r from %s: %s", self.scope["path"], self.address, message)
        self.close(code, message)

    def _received(self, text: str | None) -> None:
        if self.is_closing:
            return
        if text is None:
            self.say(
                envelope.encode_error(Code.BAD_REQUEST, "binary messages belong to version 2; this socket speaks 1")
            )
        elif self.link:
            self.heard(self.link, text)
        elif sum(map(len, self._early)) + len(text) > self.max_early_bytes:
            self._refuse(
                Code.TOO_LARGE, f"more than {self.max_early_bytes} bytes came before the credential was checked"
            )
        else:
            self._early.append(text)


class PeerConsumer(Door):
    """/ws: a peer registers, is asked, answers."""

    max_early_bytes = wire.MAX_FIRST_MESSAGE_BYTES

    def heard(self, link: Link[Edge], text: str) -> None:
        if not link.generation:
            return self._register(link, text)
        try:
            hub.answer(link, envelope.decode_answer(text))
        except WireError as error:
            hub.malformed(link, error)
            logger.warning("peer %s sent what can't be read: %s", link.peer_id, error.message)

    def left(self, link: Link[Edge]) -> None:
        if link.generation:
            logger.info("peer %s has left (registration %d)", link.peer_id, link.generation)

    def _register(self, link: Link[Edge], text: str) -> None:
        if len(text) > wire.MAX_FIRST_MESSAGE_BYTES:
            return self._refuse(Code.TOO_LARGE, f"the first message exceeds {wire.MAX_FIRST_MESSAGE_BYTES} bytes")
        try:
            peer_id = envelope.decode_register(text)
        except WireError as error:
            return self._refuse(error.code, error.message)
        if peer_id != link.peer_id:
            return self._refuse(Code.FORBIDDEN, "the credential belongs to another peer_id")
        self.settled()
        hub.register(link)
        logger.info("peer %s is here from %s (registration %d)", peer_id, self.address, link.generation)
        self.say(envelope.encode_registered(peer_id, f"{settings.RELAY_URL}/rpc/{peer_id}"))


class RpcConsumer(Door):
    """/rpc/<peer_id>: a caller asks one peer, as many requests as it likes."""

    max_early_bytes = wire.MAX_MESSAGE_BYTES

    def admitted(self) -> None:
        self.settled()

    def heard(self, link: Link[Edge], text: str) -> None:
        """`handle_rpc` of the record."""
        try:
            request = envelope.decode_request(text)
        except WireError as error:
            metrics.outcomes[error.code] += 1
            if not error.request_id:
                return self.say(envelope.encode_error(error.code, error.message))
            return self.deliver(wire.error_response(error.request_id, error.code, error.message))
        hub.request(link, self.scope["url_route"]["kwargs"]["peer_id"], request)


class NoDoor(Door):
    """Any other path: the refusal is for its sender to read, not for our log to fill with tracebacks."""

    def _connected(self) -> None:
        self.outbox.accept()
        self._refuse(
            Code.NOT_FOUND, "no socket is served here; a node registers at /ws, a caller asks at /rpc/<peer_id>"
        )
