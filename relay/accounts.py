"""How much may be under way: for a caller, to a peer, through the process. Over it somebody is told at once.

Each byte of a request counts once. First as sent: until it is proved that the peer has read it, so that a peer which
reads nothing can't collect other people's cancelled requests; by the PONG to a later PING on a version 2 socket; on
version 1 by an answer to it or to a later one, or by the server's own pings. Then as unanswered, until its answer
begins.
"""

from __future__ import annotations

from typing import Generic

from relay import wire
from relay.credit import weight_of
from relay.links import Edge, Flight, Link, Load
from relay.wire import Code, WireError


class Accounts(Generic[Edge]):
    def __init__(self) -> None:
        self.ping_s = wire.PING_S
        self.process = Load()
        self._callers: dict[str, Load] = {}

    def open(self, peer_id: str) -> Load:
        """What a caller has under way, with one socket more. Raises 429 or 503 for one too many."""
        load = self._callers.get(peer_id) or Load()
        if peer_id != wire.TRACKER:
            if self.process.sockets >= wire.MAX_SOCKETS_PER_PROCESS:
                raise WireError(Code.BUSY, f"{self.process.sockets} sockets are open here; try again later")
            if load.sockets >= wire.MAX_SOCKETS_PER_CALLER:
                raise WireError(Code.RATE_LIMITED, f"{load.sockets} sockets of {peer_id} are open; close some first")
        self._callers[peer_id] = load
        load.sockets += 1
        self.process.sockets += 1
        return load

    def close(self, link: Link[Edge]) -> None:
        link.unproved.clear()
        link.asking.sockets -= 1
        self.process.sockets -= 1
        if not link.asking.sockets:
            del self._callers[link.peer_id]

    def check_room(self, caller: Link[Edge], callee: Link[Edge], num_bytes: int, now: float) -> None:
        process, asking = self.process, caller.asking
        is_full = process.bytes + num_bytes > wire.MAX_BYTES_PER_PROCESS
        if is_full or process.requests >= wire.MAX_IN_FLIGHT_PER_PROCESS:
            raise WireError(Code.BUSY, f"{process.requests} requests are in flight here; try again later")
        if caller.peer_id != wire.TRACKER:
            is_full = asking.bytes + num_bytes > wire.MAX_BYTES_IN_FLIGHT
            if is_full or asking.requests >= wire.MAX_IN_FLIGHT_PER_CALLER:
                what = f"{asking.requests} requests of yours, {asking.bytes} bytes, are in flight"
                raise WireError(Code.RATE_LIMITED, f"{what}; wait for answers")
            if caller.version == 2 and caller.credit.unread > wire.MAX_BYTES_IN_FLIGHT:
                raise WireError(Code.RATE_LIMITED, f"{caller.credit.unread} bytes wait for you to read them")
        self._outlived_pings(callee, now)
        is_full = callee.outstanding + num_bytes > wire.MAX_BYTES_IN_FLIGHT
        if is_full or callee.working.requests >= wire.MAX_IN_FLIGHT_PER_PEER:
            what = f"{callee.working.requests} requests, {callee.outstanding} bytes, wait for the peer {callee.peer_id}"
            raise WireError(Code.PEER_BUSY, f"{what}; try again later")

    def is_too_far_behind(self, caller: Link[Edge], answer: wire.Answer) -> bool:
        """Whether this answer may not wait for its caller too; only version 2 shows what is read."""
        return caller.version == 2 and caller.credit.unread + weight_of(answer) > wire.MAX_UNREAD_BYTES

    def sent(self, flight: Flight[Edge]) -> None:
        """The request is on its way to the callee, and the last thing that is."""
        for load in (self.process, flight.caller.asking):
            load.requests += 1
            load.bytes += flight.num_bytes
        flight.callee.working.requests += 1
        flight.position = flight.callee.credit.sent
        flight.callee.unproved[flight.relay_id] = flight

    def proved(self, callee: Link[Edge], position: int) -> None:
        """The callee has read all that was sent before."""
        callee.credit.proved = max(callee.credit.proved, position)
        while callee.unproved:
            relay_id = next(iter(callee.unproved))  # at once: of a plain dict it would walk past what was removed
            flight = callee.unproved[relay_id]
            if flight.position > callee.credit.proved:
                return
            del callee.unproved[relay_id]
            flight.is_read = True
            callee.working.bytes += flight.num_bytes

    def spoken_of(self, callee: Link[Edge], relay_id: str) -> None:
        """The callee answers, late perhaps: on version 1 that shows what it has read."""
        flight = callee.unproved.get(relay_id)
        if flight is not None and callee.version == 1:
            self.proved(callee, flight.position)

    def answered(self, flight: Flight[Edge]) -> None:
        """Its bytes wait for nobody: the answer has begun, or it is over."""
        self.process.bytes -= flight.num_bytes
        flight.caller.asking.bytes -= flight.num_bytes
        if flight.is_read:
            flight.callee.working.bytes -= flight.num_bytes
        flight.num_bytes = 0

    def ended(self, flight: Flight[Edge]) -> None:
        self.answered(flight)
        for load in (self.process, flight.caller.asking, flight.callee.working):
            load.requests -= 1

    def _outlived_pings(self, callee: Link[Edge], now: float) -> None:
        """The server's pings would have ended a version 1 socket that read nothing for so long."""
        if callee.version != 1:
            return
        longest_s = 2 * wire.SERVER_PING_PERIODS * self.ping_s
        read = [it.position for it in callee.unproved.values() if now - it.sent_at >= longest_s]
        if read:
            self.proved(callee, max(read))
