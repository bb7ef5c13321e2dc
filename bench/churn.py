"""What a relay goes through in months, in milliseconds: ends that come, ask, fail and leave, each under new names."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.load import Line
from bench.sockets import Loop, read
from bench.tongues import Tongue, same_again, step
from relay import wire

BODY = bytes(4096)
NUM_CHUNKS = 5


@dataclass(frozen=True)
class Pair:
    """A caller and a peer, connected for one scene."""

    tongue: Tongue
    caller: Any
    peer: Any
    peer_id: str

    def ask(self, request: wire.Request, to: str = "") -> None:
        self.caller.send(self.tongue.encode(request, to or self.peer_id), self.tongue.opcode)

    def take(self) -> wire.Request | wire.Cancel:
        while (asked := self.tongue.decode_at_peer(self.peer, read(self.peer))) is None:
            pass
        return asked

    def take_request(self) -> wire.Request:
        asked = self.take()
        assert isinstance(asked, wire.Request), asked
        return asked

    def answer(self, answer: wire.Answer) -> None:
        self.peer.send(self.tongue.encode(answer), self.tongue.opcode)

    def hear(self) -> wire.Answer:
        while (answer := self.tongue.decode_at_caller(self.caller, read(self.caller))) is None:
            pass
        return answer

    def hears(self, status: int) -> None:
        answer = self.hear()
        assert isinstance(answer, wire.Response), answer
        assert answer.status == status, f"{answer.status} instead of {status}: {answer.body[:200]!r}"


def answered(pair: Pair) -> None:
    pair.ask(step(BODY))
    pair.answer(same_again(pair.take_request()))
    pair.hears(200)


def streamed(pair: Pair) -> None:
    pair.ask(step(BODY))
    relay_id = pair.take_request().request_id
    pair.answer(wire.Response(relay_id, 200, stream=True))
    for _ in range(NUM_CHUNKS):
        pair.answer(wire.Chunk(relay_id, BODY))
    pair.answer(wire.End(relay_id))
    while not isinstance(pair.hear(), wire.End):
        pass


def caller_leaves(pair: Pair) -> None:
    """In the middle of a stream: the peer hears of it, and what it still says is dropped."""
    pair.ask(step(BODY))
    relay_id = pair.take_request().request_id
    pair.answer(wire.Response(relay_id, 200, stream=True))
    pair.hears(200)
    pair.caller.shutdown()
    assert isinstance(pair.take(), wire.Cancel)
    pair.answer(wire.End(relay_id))


def peer_leaves(pair: Pair) -> None:
    pair.ask(step(BODY))
    pair.take_request()
    pair.peer.shutdown()
    pair.hears(502)


def is_late(pair: Pair) -> None:
    pair.ask(step(BODY, deadline_ms=1))
    relay_id = pair.take_request().request_id
    pair.hears(504)
    assert isinstance(pair.take(), wire.Cancel)
    pair.answer(wire.Response(relay_id, 200))


def asks_what_is_not_served(pair: Pair) -> None:
    pair.ask(step(BODY, path="/admin"))
    pair.hears(403)


def peer_breaks_the_rules(pair: Pair) -> None:
    pair.ask(step(BODY))
    pair.answer(wire.Chunk(pair.take_request().request_id, b"no answer was begun"))
    pair.hears(502)


SCENES: list[Callable[[Pair], None]] = [
    answered,
    streamed,
    caller_leaves,
    peer_leaves,
    is_late,
    asks_what_is_not_served,
    peer_breaks_the_rules,
]


class Churning:
    """Lives in a process of its own."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.loop = Loop()
        self.lines = lines
        self.num_played = 0

    def play(self, seconds: float) -> int:
        """Scene after scene, on each line in turn, until the time is over; how many that were, a request each."""
        until = time.perf_counter() + seconds
        began = self.num_played
        while time.perf_counter() < until:
            line = self.lines[self.num_played // len(SCENES) % len(self.lines)]
            with connected(line) as pair:
                SCENES[self.num_played % len(SCENES)](pair)
            self.num_played += 1
        return self.num_played - began


@contextmanager
def connected(line: Line) -> Iterator[Pair]:
    peer_id = secrets.token_hex(16)
    peer = line.tongue.open_peer(line.peer_url, peer_id)
    try:
        caller = line.tongue.open_caller(line.caller_url, secrets.token_hex(16), peer_id)
        try:
            yield Pair(line.tongue, caller, peer, peer_id)
        finally:
            caller.shutdown()
    finally:
        peer.shutdown()
