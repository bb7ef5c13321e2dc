"""The relay's door to this node: one WebSocket to /ws, kept open, over which requests come and answers go.

Two threads share the socket: this module's reads and hands requests to NodeApi, the outbox's writes. When the
connection ends it is opened again, after a random time below a bound that doubles.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time

from nodes.api import NodeApi
from nodes.backoff import Backoff
from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.link import Link, refusal_in
from relay import wire

logger = logging.getLogger(__name__)

CONNECT_DEADLINE_S = 10.0  # connect, TLS, upgrade, registration
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 30.0
LIVED_S = 10.0  # a connection that lasted so long was a good one: the next failure is the first again
REPLACED_PAUSE_S = 60.0
REFUSED_PAUSE_S = 10.0


class RelayHttpBridge:
    def __init__(
        self,
        api: NodeApi,
        relay_url: str,
        peer_id: str,
        node_key: str,
        tls: ssl.SSLContext,
        backoff: Backoff | None = None,
        replaced_pause_s: float = REPLACED_PAUSE_S,
    ) -> None:
        self._api, self._relay_url, self._peer_id, self._node_key, self._tls = api, relay_url, peer_id, node_key, tls
        self._backoff = backoff or Backoff(FIRST_BACKOFF_S, MOST_BACKOFF_S)
        self._replaced_pause_s = replaced_pause_s
        self._thread = threading.Thread(target=self._run, name="relay-reader", daemon=True)
        self._stopping = threading.Event()
        self.connected = threading.Event()
        self._link: Link | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, deadline: Deadline) -> None:
        """Sends what waits to be sent, says goodbye and closes."""
        self._stopping.set()
        link = self._link
        if link:
            link.outbox.drain(deadline)
            link.connection.say_goodbye()
            link.connection.shut_down()
        self._thread.join(deadline.left_s())

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self._serve_one_connection()
                cause = ConnectionFailed("the connection ended")
            except ConnectionFailed as error:
                cause = error
            except Exception:
                logger.exception("the bridge to the relay failed")
                cause = ConnectionFailed("an error of ours")
            if self._stopping.is_set():
                return
            if time.monotonic() - started > LIVED_S:
                self._backoff.reset()
            self._stopping.wait(self._pause_s(cause))

    def _serve_one_connection(self) -> None:
        connection = Connection(self._relay_url, self._node_key, self._tls)
        deadline = Deadline.after(CONNECT_DEADLINE_S)
        connection.open(deadline)
        try:
            self._register(connection, deadline)
            link = self._link = Link(connection, self._api)
            if self._stopping.is_set():
                return
            logger.info("Connected to the relay at %s", self._relay_url)
            self.connected.set()
            link.serve()
        finally:
            self.connected.clear()
            if self._link:
                self._link.end()
                self._link = None
            connection.close()

    def _register(self, connection: Connection, deadline: Deadline) -> None:
        connection.send(json.dumps({"type": "register", "peer_id": self._peer_id}), deadline)
        try:
            while (text := connection.receive(deadline)) is None:
                pass
        except TimeoutError:
            raise ConnectionFailed(f"the relay didn't answer the registration in {CONNECT_DEADLINE_S:g} s") from None
        if not _is_registered(text):
            raise refusal_in(text)

    def _pause_s(self, cause: ConnectionFailed) -> float:
        """How long to wait, and a line that says why."""
        if cause.status in (409, wire.CLOSE_REPLACED):
            pause_s = self._replaced_pause_s
            logger.error(
                "The relay says that another machine uses this node's key; trying again in %.0f s. Stop the other one, "
                "or start this one with a state folder of its own (--state-dir) and a join token",
                pause_s,
            )
            return pause_s
        pause_s = self._backoff.next_s()
        if cause.status in (401, 403, wire.CLOSE_CREDENTIAL, wire.CLOSE_FORBIDDEN):
            pause_s += REFUSED_PAUSE_S
        logger.warning("No connection to the relay at %s: %s; trying again in %.1f s", self._relay_url, cause, pause_s)
        return pause_s


def _is_registered(text: str) -> bool:
    try:
        message = json.loads(text)
    except ValueError:
        return False
    return isinstance(message, dict) and message.get("type") == "registered"
