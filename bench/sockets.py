"""Sockets of websocket-client, many in one thread: a thread for each would measure Python's interpreter lock.

A socket is read when it is readable, one whole frame at a time; nothing of the next frame is taken from the kernel, so
that the poll stays true to what is there.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

import websocket

from tests.relay.credentials import credential

TIMEOUT_S = 30

Heard = Callable[[bytes], None]


def open_socket(url: str, peer_id: str = "", subprotocols: list[str] | None = None) -> Any:
    header = [f"Authorization: Bearer {credential(peer_id)}"] if peer_id else []
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "skip_utf8_validation": True, "suppress_origin": True}
    return websocket.create_connection(url, header=header, subprotocols=subprotocols, **options)


def read(ws: Any) -> bytes:
    """The next message."""
    while (message := read_frame(ws)) is None:
        pass
    return message


def read_frame(ws: Any) -> bytes | None:
    """The next message, or None when a ping came, which is answered."""
    frame = ws.recv_frame()
    if frame.opcode == websocket.ABNF.OPCODE_PING:
        ws.pong(frame.data)
        return None
    if frame.opcode == websocket.ABNF.OPCODE_CLOSE:
        raise ConnectionError(f"the server closed a socket: {frame.data!r}")
    data: bytes = frame.data
    return data


class Loop:
    def __init__(self) -> None:
        self._poll = select.epoll()
        self._heard: dict[int, tuple[Any, Heard]] = {}

    def add(self, ws: Any, heard: Heard) -> None:
        """`heard` is called with each message."""
        self._heard[ws.fileno()] = ws, heard
        self._poll.register(ws.fileno(), select.EPOLLIN)

    def watch(self, fileno: int) -> None:
        """`run` ends when this is readable."""
        self._poll.register(fileno, select.EPOLLIN)

    def run(self, deadline: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Until the deadline by time.perf_counter, what is watched is readable, or it is done."""
        while not is_done() and (left_s := deadline - time.perf_counter()) > 0:
            for fileno, _ in self._poll.poll(left_s):
                if fileno not in self._heard:
                    return
                ws, heard = self._heard[fileno]
                message = read_frame(ws)
                if message is not None:
                    heard(message)
