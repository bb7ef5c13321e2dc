"""One connection to the relay, from its registration to its end: requests that come, and answers to what was asked."""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from concurrent.futures import Future

from nodes.api import NodeApi
from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.dialects import Dialect, refused
from nodes.events import Answer, StreamAnswer
from nodes.outbox import Outbox
from nodes.pulse import Pulse
from nodes.tunnel import Tunnel
from relay import wire
from relay.wire import Cancel, Chunk, Code, Drain, End, Error, Frame, Ping, Pong, Request, Response, WireError

logger = logging.getLogger(__name__)

LOOKS_PER_PERIOD = 4  # whether the relay is still there
LEAVE_TICK_S = 0.1


class Link:
    """`tunnel` is opened with it where the connection speaks version 2 of the wire."""

    def __init__(
        self, connection: Connection, api: NodeApi, dialect: Dialect, tunnel: Tunnel | None, ping_s: float
    ) -> None:
        self.connection, self._api, self._dialect = connection, api, dialect
        self._tunnel = (tunnel if dialect.version == 2 else None) or Tunnel()
        self._ping_s = ping_s
        self.outbox = Outbox(connection, dialect, Pulse(ping_s))
        self.leaves_at: float | None = None  # the relay process stops: when to connect again, by time.monotonic()
        self._asked: dict[str, Future[Answer]] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        self.connection.on_ping = self.outbox.answer_ping
        self.connection.on_pong = self._heard_pong
        self.outbox.start()
        self._tunnel.open(self.outbox)

    def serve(self) -> None:
        """Until the connection ends: raises ConnectionFailed."""
        while True:
            message = self._receive()
            if message is not None:
                self._take(message)
            self._look()

    def end(self, cause: str) -> None:
        """The relay has told every asker already; whatever still runs for them is ended."""
        self._tunnel.close(cause)
        self.outbox.close()
        self.connection.shut_down()
        with self._lock:
            asked = list(self._asked.values())
        for answer in asked:
            _cancel(answer)
        self.outbox.join(5)

    def _receive(self) -> str | bytes | None:
        wait_s = self._ping_s / LOOKS_PER_PERIOD
        if self.leaves_at is not None:
            wait_s = min(wait_s, max(LEAVE_TICK_S, self.leaves_at - time.monotonic()))
        try:
            return self.connection.receive(Deadline.after(wait_s))
        except TimeoutError:
            return None

    def _look(self) -> None:
        if self.outbox.is_dead():
            raise ConnectionFailed("the relay has stopped answering")
        if self.leaves_at is not None and time.monotonic() >= self.leaves_at and self._is_idle():
            raise ConnectionFailed("the relay asked for it")

    def _is_idle(self) -> bool:
        return not self._asked and not self._tunnel.num_asked and self.outbox.is_empty

    def _take(self, message: str | bytes) -> None:
        try:
            frame = self._dialect.read(message)
        except WireError as error:
            return self._complain(error)
        match frame:
            case Request():
                self._begin(frame)
            case Response() | Chunk() | End():
                self._hear(frame)
            case Cancel():
                self._end_request(frame.request_id)
            case Error():
                if not frame.request_id:
                    return self._hear_of_itself(frame)
                self._hear(wire.error_response(frame.request_id, frame.code, frame.message))
            case _:
                self._mind(frame)

    def _hear_of_itself(self, error: Error) -> None:
        """A message of ours may have been at fault; anything else is the end of the connection."""
        if error.code is not Code.BAD_REQUEST:
            raise refused(error)
        logger.warning("The relay can't read what this node sent: %s", error.message)

    def _mind(self, frame: Frame) -> None:
        """What concerns the connection itself."""
        match frame:
            case Ping():
                self.outbox.answer_ping(frame)
            case Pong():
                self.outbox.heard_pong(frame.n)
            case Drain():
                wait_s = (frame.reconnect_in_ms + random.random() * frame.spread_ms) / 1000
                self.leaves_at = time.monotonic() + wait_s
                logger.info("The relay is about to stop; connecting anew in %.1f s, after what is under way", wait_s)
            case _:
                logger.warning("The relay sent a %s, which it mustn't now", type(frame).__name__.upper())

    def _begin(self, request: Request) -> None:
        answer = self._api.begin(request, "relay")
        with self._lock:
            self._asked[request.request_id] = answer
        answer.add_done_callback(functools.partial(self._answered, request.request_id))

    def _end_request(self, request_id: str) -> None:
        with self._lock:
            answer = self._asked.get(request_id)
        if answer:
            _cancel(answer)

    def _hear(self, answer: wire.Answer) -> None:
        """Nobody asks for streams here: hops answer whole."""
        if isinstance(answer, Response) and answer.stream:
            answer = wire.error_response(answer.request_id, Code.BAD_ANSWER, "the node answered with a stream")
        if not isinstance(answer, Response) or not self._tunnel.hear(answer):
            logger.debug("An answer came that nobody waits for")

    def _complain(self, error: WireError) -> None:
        """Of a message that breaks the rules: whoever it concerns is told."""
        if not error.request_id:
            logger.warning("The relay sent a message that can't be read: %s", error.message)
            return
        answer = wire.error_response(error.request_id, error.code, error.message)
        if not self._tunnel.hear(answer):
            self.outbox.force(answer)

    def _heard_pong(self, data: bytes) -> None:
        """The WebSocket's own, which carries back the number that it was sent with."""
        if data.isdigit():
            self.outbox.heard_pong(int(data[:18]))

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
            self.outbox.put(Response(request_id, answer.status, answer.headers, stream=True), deadline)
            for event in answer.events:
                self.outbox.put(Chunk(request_id, event), deadline)
            self.outbox.put(End(request_id), deadline)
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
