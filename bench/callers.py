"""Clients of a chat as bare as can be: what they cost is no part of what is measured.

One asks in turn over a connection that stays; many have a socket each in one thread and note when tokens came.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN = b'"choices":[{'  # in each event that brings text, of the site and of a head alike
READ_BYTES = 64 * 1024
TIMEOUT_S = 60.0


class Caller:
    """One connection, kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def stream_s(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> float:
        """Seconds from asking to the end of the stream, which must be a whole one."""
        data = json.dumps(body).encode()
        began = time.perf_counter()
        self._connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"} | dict(headers))
        response = self._connection.getresponse()
        said = response.read()
        took_s = time.perf_counter() - began
        assert response.status == 200, said
        num_tokens = said.count(TOKEN)
        assert said.endswith(b"data: [DONE]\n\n"), said[-500:]
        assert num_tokens == body["max_tokens"], f"{num_tokens} tokens instead of {body['max_tokens']}: {said[:500]!r}"
        return took_s

    def close(self) -> None:
        self._connection.close()


@dataclass(slots=True)
class Listener:
    """A stream of many: when its tokens came, by time.perf_counter; those that came together came at one time."""

    socket: socket.socket
    times: list[float] = field(default_factory=list)
    is_over: bool = False
    _rest: bytes = b""

    def read(self) -> None:
        data = self.socket.recv(READ_BYTES)
        now = time.perf_counter()
        assert data, "a stream broke off"
        seen = self._rest + data
        if TOKEN in seen:
            self.times.append(now)
        self.is_over = b"[DONE]" in seen
        self._rest = seen[1 - len(TOKEN) :]  # too short for a whole one

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


def request_of(port: int, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
    data = json.dumps(body).encode()
    lines = {"Host": f"127.0.0.1:{port}", "Content-Type": "application/json", "Content-Length": str(len(data))}
    head = "".join(f"{name}: {value}\r\n" for name, value in (lines | dict(headers)).items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data


class Crowd:
    """Many streams in one thread."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port, self._request = port, request
        self.listeners: list[Listener] = []
        self._selector = selectors.DefaultSelector()

    def run(self, num_streams: int, apart_s: float, at_full: Callable[[], object]) -> list[Listener]:
        """Begun one after another, read to their ends; `at_full` is called once each has had a token."""
        began = time.perf_counter()
        for number in range(num_streams):
            self._begin()
            self._read(began + (number + 1) * apart_s)
        while not all(one.times for one in self.listeners):
            self._read(time.perf_counter() + apart_s)
        assert not any(one.is_over for one in self.listeners), "they didn't run at once: ask for more tokens"
        at_full()
        while self._selector.get_map():
            self._read(time.perf_counter() + apart_s)
        self._selector.close()
        return self.listeners

    def _begin(self) -> None:
        made = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_S)
        made.sendall(self._request)
        listener = Listener(made)
        self.listeners.append(listener)
        self._selector.register(made, selectors.EVENT_READ, listener)

    def _read(self, until: float) -> None:
        while self._selector.get_map() and (left_s := until - time.perf_counter()) > 0:
            for key, _ in self._selector.select(left_s):
                listener: Listener = key.data
                listener.read()
                if listener.is_over:
                    self._selector.unregister(listener.socket)
                    listener.socket.close()
