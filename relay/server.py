"""Daphne with our limits, our pings and our way of stopping: what is in flight is finished, what comes is told.

Daphne's own answer to SIGTERM is to cancel everything at once.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import time
from collections.abc import Callable
from typing import Any

from autobahn.exception import Disconnected
from daphne.http_protocol import WebRequest
from daphne.server import Server  # installs the asyncio reactor: before any other import of twisted's
from twisted.internet import reactor as _reactor

from relay import cluster, wire
from relay.framing import framed, unframed
from relay.hub import hub, ping_s
from relay.outbox import HEAR_NOW, SEND_NOW
from relay.valve import Valve

logger = logging.getLogger(__name__)
reactor: Any = _reactor

POLL_S = 0.1
FAREWELL_S = 2.0  # for close frames and last bytes to leave
RECONNECT_IN_MS, SPREAD_MS = 500, 5000  # when peers that are told to move come back, or go to another process


class RelayServer(Server):
    """Daphne, run until SIGTERM."""

    def __init__(self, application: Any, endpoint: str, grace_s: float) -> None:
        self.connections: dict[Any, dict[str, Any]] = {}
        super().__init__(
            application,
            endpoints=[endpoint],
            signal_handlers=False,
            websocket_timeout=-1,  # the default ends every socket after a day
            websocket_connect_timeout=5,
            websocket_handshake_timeout=5,
            websocket_max_message_size=wire.MAX_MESSAGE_BYTES,
            websocket_max_frame_size=wire.MAX_MESSAGE_BYTES,
            ping_interval=wire.SERVER_PING_PERIODS * ping_s(),
            ping_timeout=wire.STALL_PERIODS * ping_s(),
            server_name="meshnet",
        )
        self.grace_s = grace_s
        self.failure = ""  # why it never listened
        self._ports: list[Any] = []
        self._stops_at: float | None = None
        self._has_sent_away = False

    def listen_success(self, port: Any) -> None:
        self._ports.append(port)
        address = port.getHost()
        host = f"[{address.host}]" if ":" in address.host else address.host
        logger.info("Listening on http://%s:%d", host, address.port)
        reactor.callLater(0, cluster.start)
        gc.collect()
        gc.freeze()  # what a start leaves is for good: collections get short, and come when they are due

    def listen_error(self, failure: Any) -> None:
        self.failure = failure.getErrorMessage()
        self.stop()

    def create_application(self, protocol: Any, scope: Any) -> Any:
        if scope["type"] == "websocket":
            scope["extensions"] = {
                SEND_NOW: functools.partial(self.send_now, protocol),
                HEAR_NOW: functools.partial(self.hear_now, protocol),
            }
        return super().create_application(protocol, scope)

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        """As Daphne's, but a socket that has begun to close is gone, and while its reader is behind this waits."""
        try:
            await super().handle_reply(protocol, message)
        except Disconnected as error:
            raise ConnectionResetError(str(error)) from None
        if message["type"] == "websocket.accept":
            protocol.valve = Valve(protocol.transport)
        elif message["type"] == "websocket.send":
            await protocol.valve.opened()

    def send_now(self, protocol: Any, message: dict[str, Any]) -> bool:
        """Without a task and its turn on the loop. False where it might wait, or fail: there it is for send()."""
        valve = getattr(protocol, "valve", None)
        is_ready = valve is not None and not valve.is_shut and protocol.state == protocol.STATE_OPEN
        if not is_ready or protocol.send_queue or message["type"] != "websocket.send":
            return False
        write_now(protocol.transport, framed(message.get("bytes"), message.get("text")))
        return True

    def hear_now(self, protocol: Any, heard: Callable[[bytes | str], None]) -> None:
        """From now on messages go there at once, not through a queue to a task that waits for its turn.

        Most are read here; autobahn reads whatever isn't a whole binary message.
        """

        def on_message(payload: bytes, is_binary: bool) -> None:
            protocol.last_ping = time.time()  # as Daphne does: who speaks needs no ping
            try:
                if not protocol.muted:
                    heard(payload if is_binary else payload.decode())
            except Exception:
                logger.exception("a message failed; its socket is closed")
                protocol.dropConnection(abort=True)

        def data_received(data: bytes) -> None:
            at = 0
            while at < len(data):
                message = unframed(data, at) if is_between_messages(protocol) else None
                if message is None:
                    read(data[at:])
                    return
                payload, at = message
                on_message(payload, True)

        read = protocol.dataReceived
        protocol.onMessage, protocol.dataReceived = on_message, data_received

    def drain(self) -> None:
        """Stops: no new connections, peers or chats, those in flight get the grace. The second time: at once."""
        if self._stops_at is not None:
            hub.stops_at = self._stops_at = time.monotonic()
            return
        hub.stops_at = self._stops_at = time.monotonic() + self.grace_s
        hub.drain()
        if here := cluster.current():
            here.withdraw()
            if here.has_twin:
                self._send_away()
        for port in self._ports:
            port.stopListening()
        logger.info("Stopping: %d requests in flight get up to %.0f s", self._num_busy(), self.grace_s)
        self._wait_for_idle()

    def kill_all_applications(self) -> Any:
        """As Daphne's, which trips over connections whose application has ended."""
        for protocol in [it for it, details in self.connections.items() if "application_instance" not in details]:
            del self.connections[protocol]
        return super().kill_all_applications()

    def _wait_for_idle(self) -> None:
        assert self._stops_at is not None
        if self._num_busy() and time.monotonic() < self._stops_at:
            reactor.callLater(POLL_S, self._wait_for_idle)
            return
        if not self._has_sent_away:
            self._send_away()
        hub.end_all("the relay has stopped; connect again")
        self._stops_at = time.monotonic() + FAREWELL_S
        self._wait_for_farewells()

    def _send_away(self) -> None:
        """Peers, to another process. Where there is none at this address, they stay to the end: chats need them."""
        self._has_sent_away = True
        hub.send_away(wire.Drain(RECONNECT_IN_MS, SPREAD_MS))

    def _wait_for_farewells(self) -> None:
        assert self._stops_at is not None
        if (self._num_busy() or hub.switchboard.links) and time.monotonic() < self._stops_at:
            reactor.callLater(POLL_S, self._wait_for_farewells)
            return
        here = cluster.current()
        leaving = asyncio.ensure_future(here.leave() if here else asyncio.sleep(0))
        leaving.add_done_callback(lambda _: reactor.callLater(POLL_S, self.stop))  # the last close frames are leaving

    def _num_busy(self) -> int:
        """Requests: those through the relay, and HTTP ones that have not been answered whole."""
        is_open = [
            isinstance(protocol, WebRequest) and "disconnected" not in details and "application_instance" in details
            for protocol, details in self.connections.items()
        ]
        return len(hub.switchboard.flights) + sum(is_open)


def is_between_messages(protocol: Any) -> bool:
    """Whether autobahn has begun nothing, and waits for no answer to its own ping: any message would be one."""
    if protocol.state != protocol.STATE_OPEN or protocol.autoPingTimeoutCall:
        return False
    return not (protocol.data or protocol.inside_message or protocol.current_frame)


def write_now(transport: Any, pieces: tuple[bytes, bytes]) -> None:
    """What the kernel takes goes at once; Twisted's write() asks the loop to be woken for it at its next turn."""
    data = b"".join(pieces)
    if transport.dataBuffer or transport._tempDataBuffer or not transport.connected:
        return transport.write(data)  # type: ignore[no-any-return]
    num_sent = transport.writeSomeData(data)
    if isinstance(num_sent, int) and num_sent >= 0:
        data = data[num_sent:]
    if data:  # also after an error, which Twisted then meets itself
        transport.write(data)
