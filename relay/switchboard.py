"""Who is connected to this process, and what is in flight: bookkeeping without sockets, events in, effects out.

A link is one authenticated end: a peer's socket, a caller's socket, a call of the tracker, the way to another
process. Each request becomes a flight between two links and ends exactly once: by the peer's answer, by its caller's
cancelling or leaving, or here, by the peer's going, the deadline, an answer that breaks the rules, draining. Answers
are taken only from the link that was asked.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Generic

from relay import served, wire
from relay.accounts import Accounts
from relay.credit import OVERHEAD_BYTES, Credit, weight_of
from relay.links import Close, Edge, Effects, Flight, Link, Send
from relay.wire import Code, WireError

FREE_FIGHTS = 5.0  # replacements in a row, until a newer one has to wait
FIGHT_PAUSE_S = 3.0  # within the time a socket has to register
PING_EARLY = 0.9  # of a period, so that what is noticed a beat late is noticed within two periods


class Switchboard(Generic[Edge]):
    """`prefix` makes this process' request ids its own: an answer to another one's can't match."""

    def __init__(
        self,
        prefix: str,
        outcomes: Counter[str],
        drops: Counter[str],
        draw_number: Callable[[], int] = lambda: secrets.randbits(53),  # of PINGs: nobody answers one unread
    ) -> None:
        self.prefix, self.outcomes, self.drops, self._draw_number = prefix, outcomes, drops, draw_number
        self.peers: dict[str, Link[Edge]] = {}
        self.links: set[Link[Edge]] = set()
        self.flights: dict[str, Flight[Edge]] = {}
        self.accounts: Accounts[Edge] = Accounts()
        self.remote: Callable[[str], Link[Edge] | None] | None = None  # finds peers of other processes
        self.took: Callable[[float], None] | None = None  # told of each request that was sent and ended, in seconds
        self.draining = False  # the process was told to stop
        self._last_number = self._last_generation = 0

    def attach(
        self, peer_id: str, scope: str, edge: Edge, *, version: int = 1, address: str = "", now: float = 0.0
    ) -> Link[Edge]:
        """Raises 429 over the number of sockets that one caller may have, 503 over the process' own."""
        link = Link(peer_id, scope, edge, self.accounts.open(peer_id), Credit(now), version, address)
        self.links.add(link)
        return link

    def register(self, link: Link[Edge], since: float, now: float = 0.0) -> Effects[Edge]:
        """From now on the link can be asked. The newest registration of a peer wins."""
        old = self.peers.get(link.peer_id)
        if old is not None and old is not link:
            link.fights, link.fought_at, link.replaced = old.fights_at(now) + 1, now, old.replaced + 1
        # By the clock, so that those of two processes can be compared, and rising whatever the clock does.
        self._last_generation = max(self._last_generation + 1, int(since * 1000))
        link.generation, link.since = self._last_generation, since
        self.peers[link.peer_id] = link
        if old is None or old is link:
            return []
        failed = self._fail_tasks(old, "its connection was replaced by a newer one", now)
        return [*failed, Close(old, Code.CONFLICT, f"a newer connection registered as {link.peer_id}")]

    def pause_s(self, peer_id: str, now: float) -> float:
        """How long a registration has to wait: two machines with one key would replace each other without end."""
        present = self.peers.get(peer_id)
        if present is None or present.fights_at(now) < FREE_FIGHTS:
            return 0.0
        return max(0.0, present.fought_at + FIGHT_PAUSE_S - now)

    def detach(self, link: Link[Edge], now: float) -> Effects[Edge]:
        """The link has ended: its open requests are cancelled, those asked of it fail. Harmless when repeated."""
        if link not in self.links:
            return []
        self.links.remove(link)
        if self.peers.get(link.peer_id) is link:
            del self.peers[link.peer_id]
        effects: Effects[Edge] = []
        for flight in list(link.calls.values()):
            effects += self._cancel(flight, "cancelled", now)
        effects += self._fail_tasks(link, "its connection has ended", now)
        self.accounts.close(link)
        return effects

    def request(self, caller: Link[Edge], to: str, request: wire.Request, now: float) -> Effects[Edge]:
        try:
            return self._forward(caller, to, request, now)
        except WireError as error:
            self.outcomes[error.code] += 1
            return self.tell(caller, wire.Error(request.request_id, error.code, error.message), now)

    def cancel(self, caller: Link[Edge], request_id: str, now: float) -> Effects[Edge]:
        """The caller waits no longer. What has ended already needs no cancelling."""
        flight = caller.calls.get(request_id)
        return self._cancel(flight, "cancelled", now) if flight else []

    def answer(self, callee: Link[Edge], answer: wire.Answer | wire.Error, now: float) -> Effects[Edge]:
        """An Error is the outcome that another process found for it."""
        flight = self._flight_of(callee, answer.request_id)
        if flight is None:
            self.drops["unmatched"] += 1
            return []
        if isinstance(answer, wire.Error):
            self._end(flight, answer.code, now)
            return self.tell(flight.caller, replace(answer, request_id=flight.request_id), now)
        if self.accounts.is_too_far_behind(flight.caller, answer):
            return self._fail(flight, Code.RATE_LIMITED, "too many answers wait for you to read them", now)
        if isinstance(answer, wire.Response):
            if flight.streaming and (answer.stream or answer.status < 400):
                return self._fail(flight, Code.BAD_ANSWER, "the peer began a second answer", now)
            flight.streaming = answer.stream
            headers = served.crossing(answer.headers)
            passed: wire.Answer = wire.Response(flight.request_id, answer.status, headers, answer.body, answer.stream)
        elif not flight.streaming:
            return self._fail(flight, Code.BAD_ANSWER, "the peer continued an answer that it hadn't begun", now)
        else:
            passed = replace(answer, request_id=flight.request_id)
        if wire.is_last(answer):
            self._end(flight, "answered", now)
        return self.tell(flight.caller, passed, now, callee.peer_id)

    def fail(self, callee: Link[Edge], relay_id: str, code: Code, message: str, now: float) -> Effects[Edge]:
        """One request that the callee was asked ends with an error, if it hasn't ended yet."""
        flight = callee.tasks.get(relay_id)
        return self._fail(flight, code, message, now) if flight else []

    def malformed(self, callee: Link[Edge], error: WireError, now: float) -> Effects[Edge]:
        """A message of a peer that can't be read: its request fails, where the request is known."""
        flight = self._flight_of(callee, error.request_id)
        if flight is None:
            self.drops["malformed"] += 1
            return []
        code = error.code if error.code is Code.TOO_LARGE else Code.BAD_ANSWER
        return self._fail(flight, code, f"the peer's answer can't be passed on: {error.message}", now)

    def tell(self, link: Link[Edge], frame: wire.Frame, now: float, sender: str = "") -> Effects[Edge]:
        """The frame, and a PING after it when so much has been sent since the last."""
        effects: Effects[Edge] = [Send(link, frame, sender)]
        if link.version == 2:
            link.credit.sent += weight_of(frame)
            if link.credit.is_ping_due():
                effects.append(self._ping(link, now))
        elif isinstance(frame, wire.Request):  # on version 1 nothing else is ever proved to be read
            link.credit.sent += weight_of(frame)
        return effects

    def pong(self, link: Link[Edge], n: int, now: float) -> None:
        if link.credit.pong(n, now):
            self.accounts.proved(link, link.credit.proved)
        else:
            self.drops["unmatched"] += 1

    def beat(self, now: float) -> Effects[Edge]:
        """PINGs that are due, and the ends of connections that don't answer them. Called many times a period."""
        effects: Effects[Edge] = []
        ping_s = self.accounts.ping_s
        for link in self.links:
            if link.version != 2:
                continue
            if link.credit.is_stalled(now, ping_s):
                effects.append(Close(link, Code.DEADLINE, "no PONG came; you read too slowly, or not at all"))
            elif now - link.credit.pinged_at >= PING_EARLY * ping_s:
                effects.append(self._ping(link, now))
        return effects

    def expire(self, now: float) -> Effects[Edge]:
        """Ends what is past its deadline. Called many times a second; walks no more than what is in flight."""
        effects: Effects[Edge] = []
        for flight in [flight for flight in self.flights.values() if flight.deadline <= now]:
            effects += self._fail(flight, Code.DEADLINE, "the peer had no answer by the deadline", now)
        return effects

    def drain(self) -> None:
        """No chat begins here any more. Each token of those that run is a new request from node to node: these are
        taken to the end."""
        self.draining = True

    def send_away(self, drain: wire.Drain, now: float) -> Effects[Edge]:
        """Whoever can be told to move is."""
        return [effect for link in self.links if link.version == 2 for effect in self.tell(link, drain, now)]

    def end_all(self, message: str, now: float) -> Effects[Edge]:
        """The process stops: whatever is in flight fails, every link is closed."""
        self.draining = True
        effects: Effects[Edge] = []
        for flight in list(self.flights.values()):
            effects += self._fail(flight, Code.DRAINING, message, now)
        effects.extend(Close(link, Code.DRAINING, message) for link in self.links)
        return effects

    def expel(self, peer_id: str, message: str, code: Code = Code.UNAUTHORIZED) -> Effects[Edge]:
        return [Close(link, code, message) for link in self.links if link.peer_id == peer_id]

    def _forward(self, caller: Link[Edge], to: str, request: wire.Request, now: float) -> Effects[Edge]:
        """The request as the peer gets it. Raises the WireError that is the caller's answer instead."""
        served.check_served(request.method, request.path)
        if request.request_id in caller.calls:
            raise WireError(Code.CONFLICT, "a request with this request_id is in flight on this socket")
        if self.draining and (caller.peer_id == wire.TRACKER or not served.goes_on(request.method, request.path)):
            raise WireError(Code.DRAINING, "the relay is about to stop; connect again")
        callee = self._callee(caller, to)
        num_bytes = OVERHEAD_BYTES + len(request.body)
        self.accounts.check_room(caller, callee, num_bytes, now)
        left_s = min((request.deadline_ms or wire.DEFAULT_DEADLINE_S * 1000) / 1000, wire.MAX_DEADLINE_S)
        self._last_number += 1
        relay_id = f"{self.prefix}{self._last_number:x}"
        headers, left_ms = served.crossing(request.headers), max(1, int(left_s * 1000))
        body, sender = request.body, caller.peer_id
        passed = wire.Request(relay_id, request.method, request.path, headers, body, sender, left_ms)
        effects = self.tell(callee, passed, now, sender)
        flight = Flight(relay_id, request.request_id, caller, callee, now + left_s, num_bytes, now)
        self.flights[relay_id] = caller.calls[request.request_id] = callee.tasks[relay_id] = flight
        self.accounts.sent(flight)
        return effects

    def _callee(self, caller: Link[Edge], to: str) -> Link[Edge]:
        callee = self.peers.get(to)
        if callee is None and self.remote:
            callee = self.remote(to)
        if callee is None or (caller.scope != callee.scope and caller.peer_id != wire.TRACKER):
            raise WireError(Code.NOT_FOUND, f"no peer {to[:64]} is connected here that you may ask")
        return callee

    def _flight_of(self, callee: Link[Edge], relay_id: str) -> Flight[Edge] | None:
        """What the callee speaks of, if it was asked that."""
        self.accounts.spoken_of(callee, relay_id)
        flight = callee.tasks.get(relay_id)
        if flight is not None and flight.num_bytes:
            self.accounts.answered(flight)
        return flight

    def _fail_tasks(self, callee: Link[Edge], why: str, now: float) -> Effects[Edge]:
        message = f"the peer {callee.peer_id} is gone: {why}"
        effects: Effects[Edge] = []
        for flight in list(callee.tasks.values()):
            self._end(flight, Code.PEER_GONE, now)
            effects += self.tell(flight.caller, wire.Error(flight.request_id, Code.PEER_GONE, message), now)
        return effects

    def _fail(self, flight: Flight[Edge], code: Code, message: str, now: float) -> Effects[Edge]:
        cancel = self._cancel(flight, code, now)
        return [*self.tell(flight.caller, wire.Error(flight.request_id, code, message), now), *cancel]

    def _cancel(self, flight: Flight[Edge], outcome: str, now: float) -> Effects[Edge]:
        self._end(flight, outcome, now)
        return self.tell(flight.callee, wire.Cancel(flight.relay_id), now, flight.caller.peer_id)

    def _ping(self, link: Link[Edge], now: float) -> Send[Edge]:
        return Send(link, link.credit.ping(self._draw_number(), now))

    def _end(self, flight: Flight[Edge], outcome: str, now: float) -> None:
        del self.flights[flight.relay_id]
        del flight.caller.calls[flight.request_id]
        del flight.callee.tasks[flight.relay_id]
        self.accounts.ended(flight)
        self.outcomes[outcome] += 1
        if self.took:
            self.took(now - flight.sent_at)
