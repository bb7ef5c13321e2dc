"""The relay's door to this node: one WebSocket to /ws, kept open, over which requests come and answers go.

Two threads share the socket: this module's reads and hands requests to NodeApi, the outbox's writes. When the
connection ends it is opened again, after a random time below a bound that doubles.
"""

from __future__ import annotations

import functools
import json
import logging
import ssl
import threading
import time
from concurrent.futures import Future

from nodes.api import NodeApi
from nodes.backoff import Backoff
from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.events import Answer, StreamAnswer
from nodes.outbox import Outbox
from relay import wire
from relay.wire import Code

logger = logging.getLogger(__name__)

CONNECT_DEADLINE_S = 10.0  # connect, TLS, upgrade, registration
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 30.0
LIVED_S = 10.0  # a connection that lasted so long was a good one: the next failure is the first again
QUIET_S = 20.0  # without a word from the relay we ping; without one after that for
ANSWER_PING_S = 15.0  # so long, the connection is dead
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
        self._link: _Link | None = None

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
            link = self._link = _Link(connection, self._api)
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
            raise _refusal(text)

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


class _Link:
    """One connection from its registration to its end, with the requests that came over it."""

    def __init__(self, connection: Connection, api: NodeApi) -> None:
        self.connection, self._api = connection, api
        self.outbox = Outbox(connection)
        self._asked: dict[str, Future[Answer]] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Until the connection ends: raises ConnectionFailed."""
        self.connection.on_ping = self.outbox.force
        self.outbox.start()
        while True:
            text = self._receive()
            if text is not None:
                self._dispatch(text)

    def end(self) -> None:
        """The relay has told every asker already; whatever still runs for them is ended."""
        self.outbox.close()
        self.connection.shut_down()
        with self._lock:
            asked = list(self._asked.values())
        for answer in asked:
            _cancel(answer)
        self.outbox.join(5)

    def _receive(self) -> str | None:
        try:
            return self.connection.receive(Deadline.after(QUIET_S))
        except TimeoutError:
            self.outbox.force(None)
        try:
            return self.connection.receive(Deadline.after(ANSWER_PING_S))
        except TimeoutError:
            raise ConnectionFailed(f"nothing from the relay in {QUIET_S + ANSWER_PING_S:.0f} s") from None

    def _dispatch(self, text: str) -> None:
        try:
            frame = wire.decode_peer(text)
        except wire.WireError as error:
            return self._complain(text, error)
        with self._lock:
            known = self._asked.get(frame.request_id)
        if isinstance(frame, wire.Cancel):
            if known:
                _cancel(known)
            return
        answer = self._api.begin(frame, "relay")
        with self._lock:
            self._asked[frame.request_id] = answer
        answer.add_done_callback(functools.partial(self._answered, frame.request_id))

    def _complain(self, text: str, error: wire.WireError) -> None:
        if error.request_id:
            self.outbox.force(wire.error_response(error.request_id, error.code, error.message))
            return
        refusal = _refusal(text)
        if refusal.status:
            raise refusal
        logger.warning("The relay sent a message that can't be read: %s", error.message)

    def _answered(self, request_id: str, answer: Future[Answer]) -> None:
        """Called on the thread that made the answer, so it doesn't wait."""
        if answer.cancelled():
            return self._forget(request_id)
        result = answer.result()
        if isinstance(result, StreamAnswer):
            # As many threads as there are chats, and those are bounded by NodeApi.
            sending = threading.Thread(target=self._send_stream, args=(request_id, result), daemon=True)
            sending.start()
            return
        self._forget(request_id)
        if not self.outbox.offer(result):
            self.outbox.force(wire.error_response(request_id, Code.BUSY, "the connection to the relay is full"))

    def _send_stream(self, request_id: str, answer: StreamAnswer) -> None:
        deadline = Deadline.after(wire.MAX_DEADLINE_S)
        try:
            self.outbox.put(wire.Response(request_id, answer.status, answer.headers, stream=True), deadline)
            for event in answer.events:
                self.outbox.put(wire.Chunk(request_id, event), deadline)
            self.outbox.put(wire.End(request_id), deadline)
        except (ConnectionFailed, TimeoutError):
            pass  # nobody is there to be told
        finally:
            answer.cancel()
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._asked.pop(request_id, None)


def _cancel(answer: Future[Answer]) -> None:
    """A step loses its place in the engine's queue; a chat ends before its next step."""
    if answer.cancel() or answer.cancelled():
        return
    result = answer.result()
    if isinstance(result, StreamAnswer):
        result.cancel()


def _is_registered(text: str) -> bool:
    try:
        message = json.loads(text)
    except ValueError:
        return False
    return isinstance(message, dict) and message.get("type") == "registered"


def _refusal(text: str) -> ConnectionFailed:
    """What the relay says in an error frame."""
    try:
        answer = wire.decode_answer(text)
    except wire.WireError:
        answer = wire.End("")
    if not isinstance(answer, wire.Response) or answer.request_id:
        return ConnectionFailed("the relay's answer to the registration can't be read")
    _, message = wire.error_of(answer.status, answer.body)
    return ConnectionFailed(f"the relay refuses: {message}", answer.status)
