"""A door of the relay: a socket from its handshake to its end, whatever version it speaks and whoever came through.

Handlers never wait: they run one after another for a socket. What has to wait, checking a credential, is a task, and
what arrives meanwhile is held, within a bound. Everything is undone in one `finally`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from channels.consumer import AsyncConsumer

from relay import auth, codec, envelope, metrics, wire
from relay.credit import weight_of
from relay.handshake import check_origin
from relay.hub import Edge, hub
from relay.links import Link
from relay.outbox import HEAR_NOW, SEND_NOW, Outbox
from relay.wire import Code, WireError

logger = logging.getLogger(__name__)

TOO_FAR_BEHIND = "too many answers wait for you to read them"

Message = str | bytes  # as it comes from the socket: text in version 1, binary in version 2


class Early:
    """What waits for credentials to be checked, over all sockets of the process."""

    num_bytes = 0


early = Early()


class Door(AsyncConsumer):
    """Accepted always, so that a refusal can be read; then admitted or refused."""

    max_early_bytes: int  # what may arrive before the socket is admitted
    outbox: Outbox

    def __init__(self) -> None:
        self.link: Link[Edge] | None = None
        self.address = ""
        self.version = 1
        self.is_closing = False
        self._early: list[Message] = []
        self._checking: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Instead of the base's, which makes a channel for each socket and a task for each message."""
        self.scope = scope
        self.outbox = Outbox(send, scope.get("extensions", {}).get(SEND_NOW))
        is_counted = False
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                if message["type"] == "websocket.connect":
                    self._connected()
                    metrics.open_sockets[self.version] += 1
                    is_counted = True
                else:
                    text = message.get("text")
                    self._received(message["bytes"] if text is None else text)
        finally:
            self.is_closing = True
            metrics.open_sockets[self.version] -= is_counted
            self.settled()
            self._take_early()
            if self._checking:
                self._checking.cancel()
            self.outbox.drop()
            if self.link:
                hub.detach(self.link)
                self.left(self.link)

    def heard_text(self, link: Link[Edge], text: str) -> None:
        """A message of version 1."""
        raise NotImplementedError

    def heard_frame(self, link: Link[Edge], data: bytes) -> None:
        """A message of version 2."""
        raise NotImplementedError

    def admitted(self, link: Link[Edge]) -> None:
        """The credential is good."""

    def left(self, link: Link[Edge]) -> None:
        """The socket is gone, and whatever hung on it."""

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        if self.is_closing:
            return
        if self.version == 2:
            data: Message = codec.encode_frame(frame, sender=sender)
            is_taken = self.outbox.put(data, weight_of(frame))
        else:
            data = envelope.encode(frame, to_peer=True)
            is_taken = self.outbox.put(data, len(data))
            if not is_taken and isinstance(frame, wire.Response) and len(data) > wire.KIB:
                data = envelope.encode(wire.Error(frame.request_id, Code.RATE_LIMITED, TOO_FAR_BEHIND))
                is_taken = self.outbox.put(data, len(data))
        metrics.num_bytes["out"] += len(data)
        if self.link:
            self.link.bytes_out += len(data)
        if not is_taken:
            metrics.sockets["overflowed"] += 1
            self._close(Code.RATE_LIMITED, "you read too slowly", at_once=True)

    def say(self, data: Message) -> None:
        """Beside the frames that the switchboard sends."""
        if not self.is_closing:
            self.outbox.put(data, len(data))

    def close(self, code: Code, message: str) -> None:
        self._close(code, message, at_once=code is Code.DEADLINE)

    def refuse(self, code: Code, message: str) -> None:
        metrics.refusals[code] += 1
        fields = {"path": self.scope["path"], "address": self.address, "code": code.value}
        logger.warning("refused %.80r from %s: %s", self.scope["path"], self.address, message, extra=fields)
        self.close(code, message)

    def settled(self) -> None:
        """The socket has shown who it is; it may stay."""
        if self._deadline:
            self._deadline.cancel()

    def _close(self, code: Code, message: str, *, at_once: bool) -> None:
        """Says why and closes. From here on nothing is read, and nothing in flight waits for this socket."""
        if self.is_closing:
            return
        self.is_closing = True
        self.settled()
        last = codec.encode_frame(wire.Error("", code, message)) if self.version == 2 else None
        self.outbox.end(last or envelope.encode_error(code, message), wire.close_code(code), at_once=at_once)
        if self.link:
            hub.detach(self.link)

    def _connected(self) -> None:
        subprotocol, version = chosen(self.scope.get("subprotocols", ()))
        self.version = version or 1
        if hear_now := self.scope.get("extensions", {}).get(HEAR_NOW):
            hear_now(self._received)
        self.outbox.accept(subprotocol)
        self._deadline = asyncio.get_running_loop().call_later(
            wire.REGISTER_DEADLINE_S,
            self.refuse,
            Code.DEADLINE,
            f"no registration in {wire.REGISTER_DEADLINE_S:.0f} s",
        )
        headers = self.scope["headers"]
        self.address = str((self.scope.get("client") or ("",))[0])
        if sum(metrics.open_sockets.values()) >= wire.MAX_SOCKETS_PER_PROCESS:
            return self.refuse(Code.BUSY, "too many sockets are open here; try again later")
        if version is None:
            return self.refuse(Code.UPGRADE, f"{subprotocol} isn't spoken here; upgrade to {wire.SUBPROTOCOL}")
        try:
            check_origin(headers)
            credential = auth.bearer(headers)
            identity = auth.authenticator.known(credential)
        except WireError as error:
            return self.refuse(error.code, error.message)
        if identity:
            return self._admit(identity)
        self._checking = asyncio.create_task(self._identify(credential))

    async def _identify(self, credential: str) -> None:
        try:
            identity = await auth.authenticator.identify(credential, self.address)
        except WireError as error:
            return self.refuse(error.code, error.message)
        except Exception:
            logger.exception("a credential could not be checked")
            return self.refuse(Code.BUSY, "credentials can't be checked now; try again")
        if not self.is_closing:
            self._admit(identity)

    def _admit(self, identity: auth.Identity) -> None:
        if not identity.approved:
            return self.refuse(Code.FORBIDDEN, identity.reason or "the node waits for approval")
        try:
            link = hub.attach(identity.peer_id, identity.scope, self, version=self.version, address=self.address)
        except WireError as error:
            return self.refuse(error.code, error.message)
        self.link = link
        if self.version == 2:
            self.outbox.limit(lambda: link.credit.unread - self.outbox.num_bytes <= wire.MAX_BYTES_IN_FLIGHT)
        self.admitted(link)
        for message in self._take_early():
            if not self.is_closing:
                self._heard(link, message)

    def _received(self, message: Message) -> None:
        if self.is_closing:
            return
        if self.link:
            self._heard(self.link, message)
        elif sum(map(len, self._early)) + len(message) > self.max_early_bytes:
            self.refuse(
                Code.TOO_LARGE, f"more than {self.max_early_bytes} bytes came before the credential was checked"
            )
        elif early.num_bytes + len(message) > wire.MAX_BYTES_IN_FLIGHT:
            self.refuse(Code.BUSY, "too much waits for credentials to be checked; try again")
        else:
            early.num_bytes += len(message)
            self._early.append(message)

    def _take_early(self) -> list[Message]:
        taken, self._early = self._early, []
        early.num_bytes -= sum(map(len, taken))
        return taken

    def _heard(self, link: Link[Edge], message: Message) -> None:
        link.bytes_in += len(message)
        metrics.num_bytes["in"] += len(message)
        if isinstance(message, str) and self.version == 1:
            return self.heard_text(link, message)
        if isinstance(message, bytes) and self.version == 2:
            return self.heard_frame(link, message)
        what = "binary messages only" if self.version == 2 else f"text only; offer {wire.SUBPROTOCOL} to speak another"
        hub.tell(link, wire.Error("", Code.BAD_REQUEST, f"this socket speaks version {self.version}: {what}"))


def chosen(offered: Sequence[str]) -> tuple[str | None, int | None]:
    """The subprotocol to pick, so that the client can read on, and the version that is spoken; None: no common one."""
    if wire.SUBPROTOCOL in offered:
        return wire.SUBPROTOCOL, 2
    others = [name for name in offered if name.startswith("meshnet.")]
    return (others[0], None) if others else (None, 1)
