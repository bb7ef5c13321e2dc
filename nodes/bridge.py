"""The relay's door to this node: one WebSocket to /ws, kept open, over which requests come and answers go.

Two threads share the socket: this module's reads and hands requests to NodeApi, the outbox's writes. When the
connection ends it is opened again, after a random time below a bound that doubles. Where the relay speaks version 2 of
the wire, the same socket carries what this node asks others (nodes/tunnel.py).
"""

from __future__ import annotations

import logging
import ssl
import threading
import time

from nodes.api import NodeApi
from nodes.backoff import Backoff
from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.dialects import spoken_on
from nodes.keys import Key
from nodes.link import Link
from nodes.tunnel import Tunnel
from relay import wire

logger = logging.getLogger(__name__)

CONNECT_DEADLINE_S = 10.0  # connect, TLS, upgrade, registration
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 8.0  # well below the 20 s for which chats wait for a node to be back
LIVED_S = 10.0  # a connection that lasted so long was a good one: the next failure is the first again
REPLACED_PAUSE_S = 60.0
REFUSED_PAUSE_S = 10.0
UPGRADE_PAUSE_S = 60.0
LOOK_S = 0.2


class RelayHttpBridge:
    def __init__(
        self,
        api: NodeApi,
        relay_url: str,
        peer_id: str,
        node_key: Key,
        tls: ssl.SSLContext,
        backoff: Backoff | None = None,
        replaced_pause_s: float = REPLACED_PAUSE_S,
        tunnel: Tunnel | None = None,
        ping_s: float = wire.PING_S,
        is_let_in: threading.Event | None = None,
    ) -> None:
        """`tunnel`: what this node asks others with; None: version 2 of the wire isn't offered. `is_let_in`: while the
        tracker says that this node is out, the relay would say the same and isn't asked."""
        self._api, self._relay_url, self._peer_id, self._node_key, self._tls = api, relay_url, peer_id, node_key, tls
        self._tunnel, self._ping_s, self._is_let_in = tunnel, ping_s, is_let_in
        self._backoff = backoff or Backoff(FIRST_BACKOFF_S, MOST_BACKOFF_S)
        self._replaced_pause_s = replaced_pause_s
        self._thread = threading.Thread(target=self._run, name="relay-reader", daemon=True)
        self._stopping = threading.Event()
        self._hurry = threading.Event()  # set: no pause before the next connection
        self.connected = threading.Event()
        self._link: Link | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, deadline: Deadline) -> None:
        """Sends what waits to be sent, says goodbye and closes."""
        self._stopping.set()
        self._hurry.set()
        link = self._link
        if link:
            link.outbox.drain(deadline)
            link.connection.say_goodbye()
            link.connection.shut_down()
        self._thread.join(deadline.left_s())

    def renew(self) -> None:
        """Ends the connection, which may be dead without a word, and opens another at once."""
        self._hurry.set()
        link = self._link
        if link:
            link.connection.shut_down()

    def _run(self) -> None:
        while self._wait_until_let_in():
            self._hurry.clear()
            started = time.monotonic()
            link = None
            connection = Connection(self._relay_url, str(self._node_key), self._tls, self._offers)
            try:
                link = self._connect(connection)
                cause = self._serve(link)
            except ConnectionFailed as error:
                cause = error
            except Exception:
                logger.exception("the bridge to the relay failed")
                cause = ConnectionFailed("an error of ours")
            finally:
                connection.close()
            if self._stopping.is_set():
                return
            if time.monotonic() - started > LIVED_S:
                self._backoff.reset()
            self._hurry.wait(self._pause_s(cause, link))

    def _wait_until_let_in(self) -> bool:
        """False when the bridge is told to stop."""
        while self._is_let_in and not self._stopping.is_set() and not self._is_let_in.wait(LOOK_S):
            pass
        return not self._stopping.is_set()

    @property
    def _offers(self) -> tuple[str, ...]:
        return (wire.SUBPROTOCOL,) if self._tunnel else ()

    def _connect(self, connection: Connection) -> Link:
        """Raises ConnectionFailed."""
        deadline = Deadline.after(CONNECT_DEADLINE_S)
        connection.open(deadline)
        dialect = spoken_on(connection)
        try:
            dialect.register(connection, self._peer_id, deadline)
        except TimeoutError:
            raise ConnectionFailed(f"the relay didn't answer the registration in {CONNECT_DEADLINE_S:g} s") from None
        logger.info("Connected to the relay at %s, wire version %d", self._relay_url, dialect.version)
        return Link(connection, self._api, dialect, self._tunnel, self._ping_s)

    def _serve(self, link: Link) -> ConnectionFailed:
        """Until the connection ends; why it did."""
        self._link = link
        cause = ConnectionFailed("the connection to the relay ended")
        link.open()
        try:
            if not self._stopping.is_set():
                self.connected.set()
                link.serve()
        except ConnectionFailed as error:
            cause = error
        finally:
            self.connected.clear()
            self._link = None
            link.end(cause.cause)
        return cause

    def _pause_s(self, cause: ConnectionFailed, link: Link | None) -> float:
        """How long to wait, and a line that says why."""
        if link and link.leaves_at is not None:  # not a failure: the relay has said it and how long it takes
            return max(0.0, link.leaves_at - time.monotonic())
        if cause.status in (409, wire.CLOSE_REPLACED):
            pause_s = self._replaced_pause_s
            logger.error(
                "The relay says that another machine uses this node's key; trying again in %.0f s. Stop the other one, "
                "or start this one with a state folder of its own (--state-dir) and a join token",
                pause_s,
            )
            return pause_s
        if cause.status in (426, wire.CLOSE_UPGRADE):
            logger.error("%s: upgrade this node's program; trying again in %.0f s", cause, UPGRADE_PAUSE_S)
            return UPGRADE_PAUSE_S
        pause_s = self._backoff.next_s()
        if cause.status in (401, 403, wire.CLOSE_CREDENTIAL, wire.CLOSE_FORBIDDEN):
            pause_s += REFUSED_PAUSE_S
        logger.warning("No connection to the relay at %s: %s; trying again in %.1f s", self._relay_url, cause, pause_s)
        return pause_s
