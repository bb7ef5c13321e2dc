"""Peers and callers of other processes, as ends of this one's switchboard.

A request crosses as it would go to a peer's socket, with its caller's scope beside it; the other process has the caller
as an end of its own and checks everything again. It answers to the id it was asked under. Each side keeps its half of
the books, so whichever process or road fails, the other half knows what to end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from relay import codec, metrics, wire
from relay.bus import Bus
from relay.directory import Directory
from relay.hub import Edge, Hub
from relay.links import Link
from relay.wire import Code, WireError

logger = logging.getLogger(__name__)

UNREACHABLE = "the process that holds the peer's connection can't be reached now"


FRAME = (
    b"\x02"  # begins an item that is a frame: then two bytes, the length of its caller's scope; the scope; the frame
)
Ends = dict[tuple[str, str], Link[Edge]]  # by process and peer_id


class Remotes:
    """All of them. `bus` is set by whoever makes both: it hears and fails through this."""

    bus: Bus

    def __init__(self, hub: Hub, directory: Directory) -> None:
        self._hub, self._directory = hub, directory
        self._peers: Ends = {}
        self._callers: Ends = {}

    def find(self, peer_id: str) -> Link[Edge] | None:
        """The link to a peer of another process. During an outage too: the request's failure says what is wrong."""
        entry = self._directory.last_known(peer_id)
        if entry is None or entry.process == self.bus.process:
            return None
        if self.bus.is_up and entry.process not in self._directory.processes:
            return None
        edge = RemotePeer(self._hub, self.bus, entry.process, peer_id)
        return self._end(self._peers, edge, peer_id, entry.scope)

    def hear(self, process: str, item: bytes) -> None:
        """A frame that came from another process, and its caller's scope."""
        try:
            scope, data = unframed(item)
            frame, to, sender = codec.decode_frame(data)
        except (WireError, UnicodeDecodeError) as error:
            return self._unreadable(process, error)
        match frame:
            case wire.Request():
                self._ask(process, scope, to, frame)
            case wire.Cancel():
                if caller := self._callers.get((process, sender)):
                    self._hub.cancel(caller, frame.request_id)
            case wire.Response() | wire.Chunk() | wire.End() | wire.Error():
                self._answer(process, frame)
            case _:
                metrics.drops["malformed"] += 1

    def failed(self, process: str, why: str) -> None:
        """Whatever was on the way between us may be lost, in both directions."""
        for key, link in list(self._peers.items()):
            for relay_id in list(link.tasks) if key[0] == process else []:
                self._hub.fail(link, relay_id, Code.BUSY, f"{UNREACHABLE}: {why}")
        self._drop(self._callers, lambda key, link: key[0] == process)

    def gone(self, process: str) -> None:
        """The process is dead, and with it its peers' connections."""
        for ends in (self._peers, self._callers):
            self._drop(ends, lambda key, link: key[0] == process)

    def sweep(self) -> None:
        """Lets go of ends that nothing hangs on."""
        self._drop(self._callers, lambda key, link: not link.calls)
        self._drop(self._peers, lambda key, link: not link.tasks and self._has_moved(key))

    def _ask(self, process: str, scope: str, to: str, request: wire.Request) -> None:
        if to not in self._hub.switchboard.peers:  # and never on to a third process
            message = f"the peer {to[:64]} is gone: it has just left"
            return self._reply(process, request.request_id, Code.PEER_GONE, message)
        edge = RemoteCaller(self._hub, self.bus, process, request.sender)
        try:
            caller = self._end(self._callers, edge, request.sender, scope)
        except WireError as error:
            return self._reply(process, request.request_id, error.code, error.message)
        self._hub.request(caller, to, request)

    def _answer(self, process: str, frame: wire.Answer | wire.Error) -> None:
        """Only from the process that was asked."""
        flight = self._hub.switchboard.flights.get(frame.request_id)
        edge = flight.callee.edge if flight else None
        if flight is None or not isinstance(edge, RemotePeer) or edge.process != process:
            metrics.drops["unmatched"] += 1
            return
        self._hub.answer(flight.callee, frame)

    def _unreadable(self, process: str, error: Exception) -> None:
        metrics.drops["malformed"] += 1
        logger.warning("what another process sent can't be read: %s; do all run the same version?", error)
        if isinstance(error, WireError) and error.request_id:
            self._reply(process, error.request_id, error.code, error.message)

    def _reply(self, process: str, request_id: str, code: Code, message: str) -> None:
        self.bus.send(process, framed("", codec.encode_frame(wire.Error(request_id, code, message))))

    def _end(self, ends: Ends, edge: RemotePeer | RemoteCaller, peer_id: str, scope: str) -> Link[Edge]:
        """The one that is there, unless its scope is a former one."""
        key = edge.process, peer_id
        link = ends.get(key)
        if link and link.scope == scope and link in self._hub.switchboard.links:
            return link
        if link:
            self._hub.detach(link)
        edge.link = ends[key] = self._hub.attach(peer_id, scope, edge)
        return edge.link

    def _has_moved(self, key: tuple[str, str]) -> bool:
        entry = self._directory.entry(key[1])
        return entry is None or entry.process != key[0]

    def _drop(self, ends: Ends, is_over: Callable[[tuple[str, str], Link[Edge]], bool]) -> None:
        for key, link in list(ends.items()):
            if is_over(key, link):
                ends.pop(key, None)
                self._hub.detach(link)


class RemotePeer:
    """Where the socket of a peer would be."""

    link: Link[Edge]

    def __init__(self, hub: Hub, bus: Bus, process: str, peer_id: str) -> None:
        self._hub, self._bus, self.process, self.peer_id = hub, bus, process, peer_id

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        match frame:
            case wire.Request():
                self._ask(frame)
            case wire.Cancel():
                self._bus.send(self.process, framed("", codec.encode_frame(frame, sender=sender)))

    def close(self, code: Code, message: str) -> None:
        self._hub.detach(self.link)

    def _ask(self, request: wire.Request) -> None:
        scope = self._hub.switchboard.flights[request.request_id].caller.scope
        item = framed(scope, codec.encode_frame(request, to=self.peer_id))
        if not self._bus.has_room(self.process, len(item)) or not self._bus.send(self.process, item):
            self._hub.fail(self.link, request.request_id, Code.BUSY, f"{UNREACHABLE}; try again")
        accounts = self._hub.switchboard.accounts
        accounts.proved(self.link, self.link.credit.sent)  # whether the peer reads is for its own process to find


class RemoteCaller:
    """Where the socket of a caller would be."""

    link: Link[Edge]

    def __init__(self, hub: Hub, bus: Bus, process: str, peer_id: str) -> None:
        self._hub, self._bus, self.process, self.peer_id = hub, bus, process, peer_id

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        if not isinstance(frame, wire.Answer | wire.Error):
            return  # what is said about a socket
        if self._bus.send(self.process, framed("", codec.encode_frame(frame, sender=sender))):
            return
        self._hub.cancel(self.link, frame.request_id)
        error = wire.Error(frame.request_id, Code.BUSY, "too many answers wait for the caller's process")
        self._bus.send(self.process, framed("", codec.encode_frame(error)))

    def close(self, code: Code, message: str) -> None:
        self._hub.detach(self.link)


def framed(scope: str, frame: bytes) -> bytes:
    name = scope.encode()
    return b"".join((FRAME, len(name).to_bytes(2, "big"), name, frame))


def unframed(item: bytes) -> tuple[str, bytes]:
    end = 3 + int.from_bytes(item[1:3], "big")
    return item[3:end].decode(), item[end:]
