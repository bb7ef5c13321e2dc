"""A small relay for tests of nodes: both doors, both versions of the wire, any credential `key-of-<peer_id>`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import ssl
import threading
from collections.abc import Sequence

from relay import envelope, wire
from relay.codec import decode_frame, encode_frame
from relay.wire import Frame, Ping, Pong
from tests.nodes.websockets import Ended, ServerSocket, WebSocketServer


def key_of(peer_id: str) -> str:
    return f"node_{peer_id[:8]}.key-of-{peer_id}"


class MiniRelay:
    def __init__(self, tls: ssl.SSLContext | None = None, wire_versions: Sequence[int] = wire.WIRE_VERSIONS) -> None:
        self.wire_versions = tuple(wire_versions)
        self.proxy_url = ""  # where others reach it, when that isn't its own address
        self.server = WebSocketServer(self._serve, tls, [wire.SUBPROTOCOL] if 2 in wire_versions else [])
        self.peers: dict[str, ServerSocket] = {}
        self.callers: list[ServerSocket] = []  # on /rpc
        self.asked: list[wire.Request] = []  # what callers sent
        self.answered: list[wire.Answer] = []  # what peers answered, under the relay's own ids
        self.cancelled: list[str] = []
        self.refuse_rpc = False
        self.registered = threading.Semaphore(0)
        self._routes: dict[str, tuple[ServerSocket, str]] = {}  # by our request id: the asker's socket and its id
        self._numbers = itertools.count(1)

    def __enter__(self) -> MiniRelay:
        self.server.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.__exit__()

    @property
    def ws_url(self) -> str:
        return f"{self.proxy_url or self.server.url}/ws"

    def address(self, peer_id: str) -> str:
        return f"{self.proxy_url or self.server.url}/rpc/{peer_id}"

    def ask(self, peer_id: str, request: wire.Request, caller: ServerSocket | None = None) -> str:
        """Passes a request to a peer; answers go to the caller's socket. The id under which the peer knows it."""
        own = f"r{next(self._numbers)}"
        if caller:
            self._routes[own] = (caller, request.request_id)
        self.tell(peer_id, dataclasses.replace(request, request_id=own))
        return own

    def tell(self, peer_id: str, frame: Frame) -> None:
        """Sends a peer a frame in the version that it speaks."""
        _send(self.peers[peer_id], frame, to_peer=True)

    def cut_callers(self) -> None:
        for caller in self.callers:
            caller.cut()

    def _serve(self, connection: ServerSocket) -> None:
        peer_id = connection.headers["authorization"].rpartition("key-of-")[2]
        if connection.path == "/ws":
            self._serve_peer(connection, peer_id)
        elif self.refuse_rpc:
            connection.cut()
        else:
            self._serve_caller(connection, peer_id, connection.path.removeprefix("/rpc/"))

    def _serve_peer(self, connection: ServerSocket, peer_id: str) -> None:
        self._welcome(connection, peer_id)
        self.registered.release()
        try:
            while True:
                self._take(connection, peer_id)
        finally:
            if self.peers.get(peer_id) is connection:
                del self.peers[peer_id]

    def _welcome(self, connection: ServerSocket, peer_id: str) -> None:
        self.peers[peer_id] = connection
        address = self.address(peer_id)
        if connection.subprotocol:
            assert decode_frame(connection.receive_data()).frame == wire.Hello(peer_id)
            connection.send(encode_frame(wire.Welcome(peer_id, 1, wire.limits(), address)))
        else:
            assert json.loads(connection.receive()) == {"type": "register", "peer_id": peer_id}
            connection.send(json.dumps({"type": "registered", "peer_id": peer_id, "relay_addr": address}))

    def _take(self, connection: ServerSocket, peer_id: str) -> None:
        """One message of a peer: an answer, or on version 2 a question."""
        if not connection.subprotocol:
            return self._pass_answer(envelope.decode_answer(connection.receive()))
        frame, to, _ = decode_frame(connection.receive_data())
        match frame:
            case Ping(n):
                connection.send(encode_frame(Pong(n)))
            case wire.Request():
                self._pass_request(connection, to, dataclasses.replace(frame, sender=peer_id))
            case wire.Response() | wire.Chunk() | wire.End():
                self._pass_answer(frame)
            case wire.Cancel():
                self.cancelled.append(frame.request_id)

    def _pass_request(self, caller: ServerSocket, peer_id: str, request: wire.Request) -> str:
        self.asked.append(request)
        if peer_id in self.peers:
            return self.ask(peer_id, request, caller)
        _send(caller, wire.Error(request.request_id, wire.Code.PEER_GONE, "the peer isn't here"))
        return ""

    def _pass_answer(self, answer: wire.Answer) -> None:
        self.answered.append(answer)
        caller, request_id = self._routes.get(answer.request_id, (None, ""))
        if caller:
            with contextlib.suppress(OSError):  # it has gone
                _send(caller, dataclasses.replace(answer, request_id=request_id))

    def _serve_caller(self, connection: ServerSocket, sender: str, peer_id: str) -> None:
        self.callers.append(connection)
        open_ids = []
        try:
            while True:
                request = dataclasses.replace(envelope.decode_request(connection.receive()), sender=sender)
                open_ids.append(self._pass_request(connection, peer_id, request))
        except Ended:
            self.cancelled += open_ids
            raise
        finally:
            self.callers.remove(connection)


def _send(connection: ServerSocket, frame: Frame, *, to_peer: bool = False) -> None:
    if connection.subprotocol:
        connection.send(encode_frame(frame))
    else:
        connection.send(envelope.encode(frame, to_peer=to_peer))
