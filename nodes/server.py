"""The HTTP door: a node that listens answers here what it answers through the relay.

It opens before the model is loaded, so that the port is known when the node registers; until then it says so with 503.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Any

from cheroot import wsgi

from nodes.api import MAX_CHATS, NodeApi
from nodes.events import Answer, StreamAnswer
from relay import served, wire
from relay.wire import Code, WireError

logger = logging.getLogger(__name__)

Environ = Mapping[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]

NUM_THREADS = MAX_CHATS + 8  # chats hold one each for their whole life; steps get the rest
MAX_HTTP_HEADER_BYTES = 2 * wire.MAX_META_BYTES
MAX_KEPT_CONNECTIONS = 256
TICK_S = 0.1  # how soon the server notices that it shall stop
READ_DEADLINE_S = 10  # of a request, between two reads
ANSWER_DEADLINE_S = wire.MAX_DEADLINE_S + 5


class NodeServer:
    """`api` is set when the node is ready."""

    def __init__(self, host: str, port: int) -> None:
        self.api: NodeApi | None = None
        self._server = _Server(
            (host, port), self._answer, numthreads=NUM_THREADS, timeout=READ_DEADLINE_S, request_queue_size=128
        )
        self._server.max_request_header_size = MAX_HTTP_HEADER_BYTES
        self._server.max_request_body_size = 2 * wire.MAX_BODY_BYTES  # ours says 413 below that, with an envelope
        self._server.expiration_interval = TICK_S
        self._server.keep_alive_conn_limit = MAX_KEPT_CONNECTIONS
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)

    def start(self) -> tuple[str, int]:
        """Binds and serves; (host, port) it listens on. Raises OSError."""
        self._server.prepare()
        self._thread.start()
        host, port = self._server.bind_addr[:2]
        return str(host), int(port)

    def stop(self, deadline_s: float) -> None:
        """Lets answers that are being sent finish."""
        self._server.shutdown_timeout = deadline_s
        self._server.stop()
        self._thread.join(deadline_s)

    def _answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if self.api is None:
            return _send(wire.error_response("http", Code.DRAINING, "this node is still loading"), start_response)
        try:
            request = _request(environ)
        except WireError as error:
            return _send(wire.error_response("http", error.code, error.message), start_response)
        answering = self.api.begin(request, "http")
        try:
            return _send(answering.result(ANSWER_DEADLINE_S), start_response)
        except (TimeoutError, CancelledError):
            answering.cancel()
            return _send(wire.error_response("http", Code.DEADLINE, "no answer in time"), start_response)


class _Events:
    """A stream's events; the server calls `close` when a write fails, which is how a gone client is noticed."""

    def __init__(self, answer: StreamAnswer) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._answer.events)

    def close(self) -> None:
        self._answer.cancel()


def _request(environ: Environ) -> wire.Request:
    """Raises WireError. The path is as it came: an encoded one is another path."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if environ.get("HTTP_TRANSFER_ENCODING") or not (length.isascii() and length.isdigit()):
        raise WireError(Code.BAD_REQUEST, "a body comes with its content-length")
    if int(length) > wire.MAX_BODY_BYTES:
        raise WireError(Code.TOO_LARGE, f"the body is {length} bytes; the limit is {wire.MAX_BODY_BYTES}")
    headers = {
        name[5:].lower().replace("_", "-"): str(value) for name, value in environ.items() if name.startswith("HTTP_")
    }
    body = environ["wsgi.input"].read(int(length)) if int(length) else b""
    return wire.Request("http", environ["REQUEST_METHOD"], environ["REQUEST_URI"], served.crossing(headers), body)


def _send(answer: Answer, start_response: StartResponse) -> Iterable[bytes]:
    headers = list(answer.headers.items())
    line = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    if isinstance(answer, StreamAnswer):
        start_response(line, headers)
        return _Events(answer)
    start_response(line, [*headers, ("content-length", str(len(answer.body)))])
    return [answer.body]


class _Server(wsgi.Server):
    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        logger.log(level, "%s", msg, exc_info=traceback)
