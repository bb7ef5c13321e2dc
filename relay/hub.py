"""The switchboard of this process, its clock and the ends it speaks through. Used on the event loop's thread only."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from django.conf import settings

from relay import metrics, wire
from relay.links import Close, Effects, Link, Send
from relay.switchboard import Switchboard

TICK_S = 0.1  # how late a deadline may be noticed
BEATS_PER_PERIOD = 20  # how late a PING may go, and a silence be noticed


class Edge(Protocol):
    """What carries frames out: a socket, a call of this process, the way to another. Neither method waits."""

    def deliver(self, frame: wire.Frame, sender: str = "") -> None: ...

    def close(self, code: wire.Code, message: str) -> None: ...


Listener = Callable[[Link[Edge]], None]


class Hub:
    def __init__(self) -> None:
        self.switchboard: Switchboard[Edge] = Switchboard(secrets.token_hex(4), metrics.outcomes, metrics.drops)
        self.switchboard.took = metrics.request_s.add
        self.on_registered: list[Listener] = []  # told of each registration
        self.on_detached: list[Listener] = []  # told when the end of a registered link is noticed
        self.stops_at = math.inf  # by time.monotonic(): told to stop, this process ends then what is in flight
        self._effects: deque[Send[Edge] | Close[Edge]] = deque()
        self._is_applying = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._beat_timer: asyncio.TimerHandle | None = None

    @property
    def remote(self) -> Callable[[str], Link[Edge] | None] | None:
        """Asked for a link to a peer that isn't registered here: one that was attached, whose edge leads there."""
        return self.switchboard.remote

    @remote.setter
    def remote(self, find: Callable[[str], Link[Edge] | None] | None) -> None:
        self.switchboard.remote = find

    def attach(self, peer_id: str, scope: str, edge: Edge, *, version: int = 1, address: str = "") -> Link[Edge]:
        """Raises a WireError when that is one socket too many."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._tick_timer, self._beat_timer = loop, None, None
            self.switchboard.accounts.ping_s = ping_s()
        now = time.monotonic()
        link = self.switchboard.attach(peer_id, scope, edge, version=version, address=address, now=now)
        if version == 2 and self._beat_timer is None:
            self._beat_timer = loop.call_later(ping_s() / BEATS_PER_PERIOD, self._beat)
        return link

    def register(self, link: Link[Edge]) -> None:
        """The newest registration of a peer wins."""
        effects = self.switchboard.register(link, since=time.time(), now=time.monotonic())
        metrics.sockets["registered"] += 1
        metrics.sockets["replaced"] += link.replaced > 0
        self._apply(effects)
        for listener in self.on_registered:
            listener(link)

    def pause_s(self, peer_id: str) -> float:
        """How long a registration has to wait now, while connections of this peer replace each other."""
        return self.switchboard.pause_s(peer_id, time.monotonic())

    def detach(self, link: Link[Edge]) -> None:
        """Harmless when repeated."""
        was_here = link in self.switchboard.links
        self._apply(self.switchboard.detach(link, time.monotonic()))
        if was_here and link.generation:
            for listener in self.on_detached:
                listener(link)

    def request(self, link: Link[Edge], peer_id: str, request: wire.Request) -> None:
        self._apply(self.switchboard.request(link, peer_id, request, time.monotonic()))
        if self._tick_timer is None and self._loop:
            self._tick_timer = self._loop.call_later(TICK_S, self._tick)

    def cancel(self, link: Link[Edge], request_id: str) -> None:
        """The caller waits for this one no more."""
        self._apply(self.switchboard.cancel(link, request_id, time.monotonic()))

    def answer(self, link: Link[Edge], answer: wire.Answer | wire.Error) -> None:
        self._apply(self.switchboard.answer(link, answer, time.monotonic()))

    def malformed(self, link: Link[Edge], error: wire.WireError) -> None:
        self._apply(self.switchboard.malformed(link, error, time.monotonic()))

    def fail(self, link: Link[Edge], relay_id: str, code: wire.Code, message: str) -> None:
        """Ends one request that `link` was asked: what carries it there has failed."""
        self._apply(self.switchboard.fail(link, relay_id, code, message, time.monotonic()))

    def tell(self, link: Link[Edge], frame: wire.Frame) -> None:
        self._apply(self.switchboard.tell(link, frame, time.monotonic()))

    def pong(self, link: Link[Edge], n: int) -> None:
        self.switchboard.pong(link, n, time.monotonic())

    def drain(self) -> None:
        self.switchboard.drain()

    @property
    def is_draining(self) -> bool:
        """Told to stop: neither a chat nor a peer comes in any more."""
        return self.switchboard.draining

    def send_away(self, drain: wire.Drain) -> None:
        self._apply(self.switchboard.send_away(drain, time.monotonic()))

    def end_all(self, message: str) -> None:
        self._apply(self.switchboard.end_all(message, time.monotonic()))

    def expel(self, peer_id: str, message: str, code: wire.Code = wire.Code.UNAUTHORIZED) -> None:
        """Closes what this peer has open here. From any thread."""
        loop = self._loop
        if loop and not loop.is_closed():
            loop.call_soon_threadsafe(lambda: self._apply(self.switchboard.expel(peer_id, message, code)))

    def _apply(self, effects: Effects[Edge]) -> None:
        """In order, also when an effect causes further ones: an end that overflows is detached on the spot."""
        self._effects.extend(effects)
        if self._is_applying:
            return
        self._is_applying = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, Send):
                    effect.link.edge.deliver(effect.frame, effect.sender)
                else:
                    effect.link.edge.close(effect.code, effect.message)
        finally:
            self._is_applying = False

    def _tick(self) -> None:
        self._tick_timer = None
        self._apply(self.switchboard.expire(time.monotonic()))
        if self.switchboard.flights and self._loop:
            self._tick_timer = self._loop.call_later(TICK_S, self._tick)

    def _beat(self) -> None:
        self._beat_timer = None
        self._apply(self.switchboard.beat(time.monotonic()))
        if self._loop and any(link.version == 2 for link in self.switchboard.links):
            self._beat_timer = self._loop.call_later(ping_s() / BEATS_PER_PERIOD, self._beat)


def ping_s() -> float:
    return float(getattr(settings, "RELAY_PING_S", wire.PING_S))


hub = Hub()
