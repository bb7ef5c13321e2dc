"""Who is connected to this process, and what is in flight: bookkeeping without sockets, events in, effects out.

A link is one authenticated end: a peer's socket, a caller's socket, a call of the tracker. Each request becomes a
flight between two links and ends exactly once: by the peer's answer, or here, by the peer's going, the deadline, an
answer that breaks the rules, draining; a caller that leaves ends its own. Answers are taken only from the link that
was asked. What a peer was sent stays on its account until it shows that it has read it, so that a peer which reads
nothing can't collect other people's cancelled requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Generic

from relay import served, wire
from relay.links import Close, Edge, Effects, Flight, Link, Load, Send, Unread
from relay.wire import Code, WireError

OVERHEAD_BYTES = 2 * wire.KIB  # what a request costs beside its body: headers, bookkeeping
PROOF_OF_READING_S = 2.0 * wire.PING_INTERVAL_S  # the server's pings would have ended a socket that reads nothing


class Switchboard(Generic[Edge]):
    """`prefix` makes this process' request ids its own: an answer to another one's can't match."""

    def __init__(self, prefix: str, outcomes: Counter[str], drops: Counter[str]) -> None:
        self.prefix, self.outcomes, self.drops = prefix, outcomes, drops
        self.peers: dict[str, Link[Edge]] = {}
        self.links: set[Link[Edge]] = set()
        self.flights: dict[str, Flight[Edge]] = {}
        self.remote: Callable[[str], Link[Edge] | None] | None = None  # finds peers of other processes
        self.draining = False
        self._loads: dict[str, Load] = {}
        self._last_number = self._last_generation = 0

    def attach(self, peer_id: str, scope: str, edge: Edge) -> Link[Edge]:
        """Raises 429 over the number of sockets that one caller may have."""
        load = self._loads.setdefault(peer_id, Load())
        if load.sockets >= wire.MAX_SOCKETS_PER_CALLER and peer_id != wire.TRACKER:
            raise WireError(Code.RATE_LIMITED, f"{load.sockets} sockets of {peer_id} are open; close some first")
        load.sockets += 1
        link = Link(peer_id, scope, edge, load)
        self.links.add(link)
        return link

    def register(self, link: Link[Edge], since: float) -> Effects[Edge]:
        """From now on the link can be asked. The newest registration of a peer wins."""
        self._last_generation += 1
        link.generation, link.since = self._last_generation, since
        old = self.peers.get(link.peer_id)
        self.peers[link.peer_id] = link
        if old is None or old is link:
            return []
        failed = self._fail_tasks(old, "its connection was replaced by a newer one")
        return [*failed, Close(old, Code.CONFLICT, f"a newer connection registered as {link.peer_id}")]

    def detach(self, link: Link[Edge], now: float) -> Effects[Edge]:
        """The link has ended: its open requests are cancelled, those asked of it fail. Harmless when repeated."""
        if link not in self.links:
            return []
        self.links.remove(link)
        if self.peers.get(link.peer_id) is link:
            del self.peers[link.peer_id]
        effects: Effects[Edge] = [self._cancel(flight, "cancelled", now) for flight in list(link.calls.values())]
        effects.extend(self._fail_tasks(link, "its connection has ended"))
        link.asking.sockets -= 1
        if not link.asking.sockets:
            del self._loads[link.peer_id]
        return effects

    def request(self, caller: Link[Edge], to: str, request: wire.Request, now: float) -> Effects[Edge]:
        try:
            return [self._forward(caller, to, request, now)]
        except WireError as error:
            self.outcomes[error.code] += 1
            return [Send(caller, wire.Error(request.request_id, error.code, error.message))]

    def cancel(self, caller: Link[Edge], request_id: str, now: float) -> Effects[Edge]:
        """The caller waits for this one no more. Harmless when it has ended."""
        flight = caller.calls.get(request_id)
        return [self._cancel(flight, "cancelled", now)] if flight else []

    def answer(self, callee: Link[Edge], answer: wire.Answer | wire.Error, now: float) -> Effects[Edge]:
        """An Error is the outcome that another process found for it."""
        flight = self._flight_of(callee, answer.request_id)
        if flight is None:
            self.drops["unmatched"] += 1
            return []
        if isinstance(answer, wire.Error):
            self._end(flight, answer.code)
            return [Send(flight.caller, replace(answer, request_id=flight.request_id))]
        if isinstance(answer, wire.Response):
            if flight.streaming and (answer.stream or answer.status < 400):
                return self._fail(flight, Code.BAD_ANSWER, "the peer began a second answer", now)
            flight.streaming = answer.stream
            headers = served.crossing(answer.headers)
            translated: wire.Answer = replace(answer, request_id=flight.request_id, headers=headers)
        elif not flight.streaming:
            return self._fail(flight, Code.BAD_ANSWER, "the peer continued an answer that it hadn't begun", now)
        else:
            translated = replace(answer, request_id=flight.request_id)
        if wire.is_last(answer):
            self._end(flight, "answered")
        return [Send(flight.caller, translated, callee.peer_id)]

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

    def expire(self, now: float) -> Effects[Edge]:
        """Ends what is past its deadline. Called many times a second; walks no more than what is in flight."""
        effects: Effects[Edge] = []
        for flight in [flight for flight in self.flights.values() if flight.deadline <= now]:
            effects.extend(self._fail(flight, Code.DEADLINE, "the peer had no answer by the deadline", now))
        return effects

    def end_all(self, message: str, now: float) -> Effects[Edge]:
        """The process stops: whatever is in flight fails, every link is closed."""
        self.draining = True
        effects: Effects[Edge] = []
        for flight in list(self.flights.values()):
            effects.extend(self._fail(flight, Code.DRAINING, message, now))
        effects.extend(Close(link, Code.DRAINING, message) for link in self.links)
        return effects

    def expel(self, peer_id: str, message: str) -> Effects[Edge]:
        return [Close(link, Code.UNAUTHORIZED, message) for link in self.links if link.peer_id == peer_id]

    def _forward(self, caller: Link[Edge], to: str, request: wire.Request, now: float) -> Send[Edge]:
        """The request as the peer gets it. Raises the WireError that is the caller's answer instead."""
        served.check_served(request.method, request.path)
        if request.request_id in caller.calls:
            raise WireError(Code.CONFLICT, "a request with this request_id is in flight on this socket")
        if self.draining:
            raise WireError(Code.DRAINING, "the relay is about to stop; connect again")
        callee = self._callee(caller, to)
        num_bytes = OVERHEAD_BYTES + len(request.body)
        _check_room(caller, callee, num_bytes, now)
        left_s = min((request.deadline_ms or wire.DEFAULT_DEADLINE_S * 1000) / 1000, wire.MAX_DEADLINE_S)
        self._last_number += 1
        relay_id = f"{self.prefix}{self._last_number:x}"
        flight = Flight(self._last_number, relay_id, request.request_id, caller, callee, now + left_s, num_bytes)
        self.flights[relay_id] = caller.calls[request.request_id] = callee.tasks[relay_id] = flight
        for load in (caller.asking, callee.working):
            load.requests += 1
            load.bytes += num_bytes
        crossing, left_ms = served.crossing(request.headers), max(1, int(left_s * 1000))
        body, sender = request.body, caller.peer_id
        passed = wire.Request(relay_id, request.method, request.path, crossing, body, sender, left_ms)
        return Send(callee, passed, sender)

    def _callee(self, caller: Link[Edge], to: str) -> Link[Edge]:
        callee = self.peers.get(to)
        if callee is None and self.remote:
            callee = self.remote(to)
        if callee is None or (caller.scope != callee.scope and caller.peer_id != wire.TRACKER):
            raise WireError(Code.NOT_FOUND, f"no peer {to[:64]} is connected here that you may ask")
        return callee

    def _flight_of(self, callee: Link[Edge], relay_id: str) -> Flight[Edge] | None:
        """What the callee speaks of, if it was asked that. Speaking of it, it has read all that was sent before."""
        flight = self.flights.get(relay_id)
        if flight is not None and flight.callee is not callee:
            return None
        spoken_of = flight or callee.unread.get(relay_id)
        if spoken_of is not None and callee.unread:
            _release(callee, [key for key, it in callee.unread.items() if it.number <= spoken_of.number])
        if flight is not None and flight.num_bytes:
            _unload(flight)
        return flight

    def _fail_tasks(self, callee: Link[Edge], why: str) -> list[Send[Edge]]:
        message = f"the peer {callee.peer_id} is gone: {why}"
        flights = list(callee.tasks.values())
        for flight in flights:
            self._end(flight, Code.PEER_GONE)
        return [Send(it.caller, wire.Error(it.request_id, Code.PEER_GONE, message)) for it in flights]

    def _fail(self, flight: Flight[Edge], code: Code, message: str, now: float) -> Effects[Edge]:
        cancel = self._cancel(flight, code, now)
        return [Send(flight.caller, wire.Error(flight.request_id, code, message)), cancel]

    def _cancel(self, flight: Flight[Edge], outcome: str, now: float) -> Send[Edge]:
        callee, num_bytes = flight.callee, flight.num_bytes
        self._end(flight, outcome)
        if num_bytes:
            callee.working.bytes += num_bytes
            callee.unread[flight.relay_id] = Unread(flight.number, num_bytes, now + PROOF_OF_READING_S)
        return Send(callee, wire.Cancel(flight.relay_id), flight.caller.peer_id)

    def _end(self, flight: Flight[Edge], outcome: str) -> None:
        del self.flights[flight.relay_id]
        del flight.caller.calls[flight.request_id]
        del flight.callee.tasks[flight.relay_id]
        _unload(flight)
        flight.caller.asking.requests -= 1
        flight.callee.working.requests -= 1
        self.outcomes[outcome] += 1


def _check_room(caller: Link[Edge], callee: Link[Edge], num_bytes: int, now: float) -> None:
    asking, working = caller.asking, callee.working
    is_full = asking.requests >= wire.MAX_IN_FLIGHT_PER_CALLER or asking.bytes + num_bytes > wire.MAX_BYTES_IN_FLIGHT
    if is_full and caller.peer_id != wire.TRACKER:
        what = f"{asking.requests} requests of yours, {asking.bytes} bytes, are in flight"
        raise WireError(Code.RATE_LIMITED, f"{what}; wait for answers")
    _release(callee, [key for key, unread in callee.unread.items() if unread.until <= now])
    if working.requests >= wire.MAX_IN_FLIGHT_PER_PEER or working.bytes + num_bytes > wire.MAX_BYTES_IN_FLIGHT:
        what = f"{working.requests} requests, {working.bytes} bytes, wait for the peer {callee.peer_id}"
        raise WireError(Code.PEER_BUSY, f"{what}; try again later")


def _release(callee: Link[Edge], relay_ids: list[str]) -> None:
    for relay_id in relay_ids:
        callee.working.bytes -= callee.unread.pop(relay_id).num_bytes


def _unload(flight: Flight[Edge]) -> None:
    """Its bytes are no longer waiting here: it has been answered, or is over."""
    flight.caller.asking.bytes -= flight.num_bytes
    flight.callee.working.bytes -= flight.num_bytes
    flight.num_bytes = 0
