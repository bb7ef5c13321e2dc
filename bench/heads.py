"""Heads that a benchmark plays: nodes of the site whose answers come at an even pace and cost next to nothing.

Nodes that compute would need the processor that the site is measured on. These join and send heartbeats as nodes do,
and answer chats through the relay's tunnel with the events of a head, all in one process with one thread.
"""

from __future__ import annotations

import heapq
import itertools
import json
import multiprocessing
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import requests
import websocket

from bench.sockets import Loop, read
from relay import codec, wire
from tests.lab.site import Site

MODEL = {"name": "paced", "fingerprint": "ab" * 32, "num_layers": 12, "hidden_size": 64, "context_length": 4096}
FACTS = {"protocol_version": 1, "wire_versions": [1, 2], "model": MODEL, "start_layer": 0, "end_layer": 12}
HEARTBEAT_S = 4.0
PROMPT_IDS = list(range(20))
BINARY = websocket.ABNF.OPCODE_BINARY


@dataclass(frozen=True, slots=True)
class Place:
    """A node as the site knows it."""

    key: str
    peer_id: str
    relay_url: str
    registration: str


@dataclass(order=True, slots=True)
class Due:
    """An event of a stream that is to be sent then."""

    at: float
    number: int
    stream: Stream = field(compare=False)


@dataclass(slots=True)
class Stream:
    ws: Any
    request_id: str
    events: Iterator[bytes]
    pause_s: float


class Heads:
    """A context: `num_heads` nodes of the model, answering with a token each `pause_s`."""

    def __init__(self, site: Site, num_heads: int, pause_s: float) -> None:
        self._site = site
        self._places = [join(site, f"head-{number}") for number in range(num_heads)]
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(self._places, pause_s, theirs), daemon=True)

    def __enter__(self) -> Heads:
        self._beating.start()
        self._process.start()
        assert self._pipe.recv() == "ready"
        self._site.wait_for_model(str(MODEL["name"]))
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()

    def most_late_s(self) -> float:
        """By how much an event was sent after it was due, at worst since this was asked last."""
        self._pipe.send("late")
        return float(self._pipe.recv())

    def _beat(self) -> None:
        for number in itertools.count(1):
            for place in self._places:
                news = {"registration": place.registration, "number": number, "state": "serving"}
                post(self._site, "heartbeat", place.key, news)
            if self._over.wait(HEARTBEAT_S):
                return


def join(site: Site, name: str) -> Place:
    told = post(site, "register", site.join_token, FACTS | {"name": name})
    return Place(told["node_key"], told["peer_id"], told["relay_url"], told["registration"])


def post(site: Site, what: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    answer = requests.post(f"{site.local_url}/api/nodes/{what}", json=body, headers=headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _answer(places: list[Place], pause_s: float, pipe: Connection) -> None:
    """In the process of its own, until the pipe is closed."""
    loop, due, late = Loop(), list[Due](), [0.0]
    numbers = itertools.count()
    for place in places:
        ws = connect(place)
        loop.add(ws, partial(_heard, ws, due, numbers, pause_s))
    loop.watch(pipe.fileno())
    pipe.send("ready")
    while True:
        loop.run(due[0].at if due else time.perf_counter() + 1)
        while due and due[0].at <= time.perf_counter():
            _tell(heapq.heappop(due), due, late)
        if pipe.poll():
            try:
                pipe.recv()
            except EOFError:
                return
            pipe.send(late[0])
            late[0] = 0.0


def connect(place: Place) -> Any:
    header = [f"Authorization: Bearer {place.key}"]
    options: dict[str, Any] = {"timeout": 30, "skip_utf8_validation": True, "suppress_origin": True}
    ws = websocket.create_connection(place.relay_url, header=header, subprotocols=[wire.SUBPROTOCOL], **options)
    ws.send(codec.encode_frame(wire.Hello(place.peer_id)), BINARY)
    welcome = codec.decode_frame(read(ws)).frame
    assert isinstance(welcome, wire.Welcome), welcome
    return ws


def _heard(ws: Any, due: list[Due], numbers: Iterator[int], pause_s: float, message: bytes) -> None:
    frame = codec.decode_frame(message).frame
    if isinstance(frame, wire.Ping):
        ws.send(codec.encode_frame(wire.Pong(frame.n)), BINARY)
    if not isinstance(frame, wire.Request):
        return
    opening = wire.Response(frame.request_id, 200, {"content-type": "text/event-stream"}, stream=True)
    ws.send(codec.encode_frame(opening), BINARY)
    stream = Stream(ws, frame.request_id, events(json.loads(frame.body)["max_tokens"]), pause_s)
    heapq.heappush(due, Due(time.perf_counter() + pause_s, next(numbers), stream))


def _tell(one: Due, due: list[Due], late: list[float]) -> None:
    stream = one.stream
    now = time.perf_counter()
    late[0] = max(late[0], now - one.at)
    data = next(stream.events, None)
    frame = wire.End(stream.request_id) if data is None else wire.Chunk(stream.request_id, data)
    stream.ws.send(codec.encode_frame(frame), BINARY)
    if data is not None:
        heapq.heappush(due, Due(now + stream.pause_s, one.number, stream))


def events(num_tokens: int) -> Iterator[bytes]:
    """A chat's, as a head encodes them."""
    for number in range(num_tokens):
        is_first, is_last = number == 0, number == num_tokens - 1
        delta = ({"role": "assistant"} if is_first else {}) | {"content": " word"}
        own: dict[str, Any] = {"ids": [number], "position": len(PROMPT_IDS) + number}
        choice = {"index": 0, "finish_reason": "length" if is_last else None, "delta": delta}
        yield encoded({"choices": [choice], "meshnet": own | ({"prompt_ids": PROMPT_IDS} if is_first else {})})
    usage = {"prompt_tokens": len(PROMPT_IDS), "completion_tokens": num_tokens}
    yield encoded({"meshnet": {"done": True, "usage": usage, "hops": []}}) + b"data: [DONE]\n\n"


def encoded(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
