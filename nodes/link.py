"""One connection to the relay, from its registration to its end, with the requests that came over it."""

from __future__ import annotations

import functools
import logging
import threading
from concurrent.futures import Future

from nodes.api import NodeApi
from nodes.connection import Connection, ConnectionFailed
from nodes.deadline import Deadline
from nodes.events import Answer, StreamAnswer
from nodes.outbox import Outbox
from relay import envelope, wire
from relay.wire import Code

logger = logging.getLogger(__name__)

QUIET_S = 20.0  # without a word from the relay we ping; without one after that for
ANSWER_PING_S = 15.0  # so long, the connection is dead


class Link:
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
            frame = envelope.decode_peer(text)
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
        refusal = refusal_in(text)
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


def refusal_in(text: str) -> ConnectionFailed:
    """What the relay says in an error frame."""
    try:
        answer = envelope.decode_answer(text)
    except wire.WireError:
        answer = wire.End("")
    if not isinstance(answer, wire.Response) or answer.request_id:
        return ConnectionFailed("the relay's answer to the registration can't be read")
    _, message = wire.error_of(answer.status, answer.body)
    return ConnectionFailed(f"the relay refuses: {message}", answer.status)
