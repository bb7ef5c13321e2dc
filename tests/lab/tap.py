"""Sees each request that reaches a node and each answer it gives, in whichever wire, and acts at one of them.

steps = Steps()
with Tap(("127.0.0.1", site.port), steps) as tap:             # nodes are given it as their relay
    at = steps.at(lambda asked: asked.step == 3, lambda asked: process_of(asked.peer_id).send(SIGKILL))
    ...
    assert not at.wait().is_answered                          # the node was killed before it got step 3

A tap is a fault proxy. It stands before the relay, where a node's HELLO or registration says whose socket it is, or
before the port of one node. `<key id> /ws` is the path of a node's own socket, so that faults can hit one node alone.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from relay import codec, envelope, headers, wire
from tests.lab.faultproxy import DOWN, UP, Direction, FaultProxy, Link

Hook = Callable[["Asked"], None]


@dataclass
class Asked:
    """One request as it reaches a node."""

    peer_id: str
    request: wire.Request
    number: int  # among all that were seen
    answer: wire.Response | None = None

    def header(self, name: str) -> str:
        return self.request.headers.get(name.lower(), "")

    def number_in(self, name: str) -> int:
        """-1 where the header is absent."""
        return int(self.header(name) or -1)

    @property
    def is_step(self) -> bool:
        return self.request.path == "/forward"

    @property
    def session(self) -> str:
        return self.header(headers.SESSION)

    @property
    def epoch(self) -> int:
        return self.number_in(headers.EPOCH)

    @property
    def step(self) -> int:
        return self.number_in(headers.STEP)

    @property
    def start_layer(self) -> int:
        return self.number_in(headers.START_LAYER)

    @property
    def is_answered(self) -> bool:
        return self.answer is not None


class Trigger:
    """Acts once, on the first request that it recognises, before that passes."""

    def __init__(self, condition: Callable[[Asked], bool], act: Hook) -> None:
        self._condition, self._act = condition, act
        self._has_come = threading.Event()
        self.asked: Asked | None = None

    @property
    def has_come(self) -> bool:
        return self._has_come.is_set()

    def wait(self, deadline_s: float = 20) -> Asked:
        assert self._has_come.wait(deadline_s), "no such request came"
        assert self.asked
        return self.asked

    def look(self, asked: Asked) -> None:
        if self.asked is None and self._condition(asked):
            self.asked = asked
            self._act(asked)
            self._has_come.set()


class Steps:
    """What the nodes behind some taps were asked, and their answers. Triggers run on a tap's thread, which waits."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._asked: list[Asked] = []
        self._open: dict[tuple[Link, str], Asked] = {}  # by connection and request id
        self._triggers: list[Trigger] = []

    def at(self, condition: Callable[[Asked], bool], act: Hook = lambda asked: None) -> Trigger:
        trigger = Trigger(condition, act)
        with self._lock:
            self._triggers.append(trigger)
        return trigger

    def seen(self, session: str = "") -> list[Asked]:
        """The steps."""
        return [asked for asked in self.requests() if asked.is_step and session in ("", asked.session)]

    def requests(self) -> list[Asked]:
        """Steps and all else."""
        with self._lock:
            return list(self._asked)

    def clear(self) -> None:
        with self._lock:
            self._asked, self._triggers = [], []

    def request(self, connection: Link, peer_id: str, request: wire.Request) -> None:
        with self._lock:
            asked = Asked(peer_id, request, next(self._numbers))
            self._asked.append(asked)
            self._open[connection, request.request_id] = asked
            for trigger in self._triggers:
                trigger.look(asked)

    def response(self, connection: Link, response: wire.Response) -> None:
        with self._lock:
            asked = self._open.pop((connection, response.request_id), None)
            if asked:
                asked.answer = response


@dataclass
class _Socket:
    """What is known of one connection: whose it is, and which wire it speaks."""

    peer_id: str = ""
    version: int = 0
    num_asked: int = 0
    num_answered: int = 0


class Tap(FaultProxy):
    """`peer_id`: of the node whose port it stands before; without one it stands before the relay."""

    def __init__(self, upstream: tuple[str, int], steps: Steps, peer_id: str = "") -> None:
        super().__init__(upstream, key_id_of)
        self.steps, self.peer_id = steps, peer_id
        self._sockets: dict[Link, _Socket] = {}
        self.watch(self._see)

    def _see(self, link: Link, direction: Direction, message: bytes) -> None:
        socket = self._sockets.setdefault(link, _Socket())
        path = link.path.rpartition(" ")[2]
        if path.startswith("/ws"):
            self._see_socket(link, socket, direction, message)
        elif not path.startswith("/rpc"):
            self._see_http(link, socket, direction, message)

    def _see_socket(self, link: Link, socket: _Socket, direction: Direction, message: bytes) -> None:
        if _is_http(message):
            return
        if not socket.version:
            socket.version = 2 if message[:1] == bytes([wire.VERSION]) else 1
        try:
            frame = _read_binary(message) if socket.version == 2 else _read_text(message, direction)
        except wire.WireError:
            return
        if isinstance(frame, wire.Hello):
            socket.peer_id = frame.peer_id
        elif isinstance(frame, wire.Request) and direction == DOWN:
            self.steps.request(link, socket.peer_id, frame)
        elif isinstance(frame, wire.Response) and direction == UP:
            self.steps.response(link, frame)

    def _see_http(self, link: Link, socket: _Socket, direction: Direction, message: bytes) -> None:
        """Answers come in the order of the requests."""
        first, fields, body = _http(message)
        if direction == UP:
            socket.num_asked += 1
            method, path, _ = first.split(" ", 2)
            request = wire.Request(str(socket.num_asked), method, path, fields, body)
            self.steps.request(link, self.peer_id, request)
        else:
            socket.num_answered += 1
            response = wire.Response(str(socket.num_answered), int(first.split(" ")[1]), fields, body)
            self.steps.response(link, response)


def key_id_of(head: bytes) -> str:
    """The public part of the credential in a request's head."""
    found = re.search(rb"\r\nauthorization: *bearer +([^.\r\n]+)\.", head, re.IGNORECASE)
    return found[1].decode() if found else ""


def _is_http(message: bytes) -> bool:
    return message.startswith((b"GET ", b"HTTP/1.1 "))


def _read_binary(message: bytes) -> wire.Frame:
    return codec.decode_frame(message).frame


def _read_text(message: bytes, direction: Direction) -> wire.Frame | None:
    text = message.decode()
    if '"register' in text[:40]:
        return wire.Hello(envelope.decode_register(text)) if direction == UP else None
    return envelope.decode_peer(text) if direction == DOWN else envelope.decode_answer(text)


def _http(message: bytes) -> tuple[str, Mapping[str, Any], bytes]:
    """(first line, headers by their names in lower case, body)."""
    head, _, body = message.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}, body
