"""A small relay for tests of nodes: both doors of wire version 1, same process, any credential `key-of-<peer_id>`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import ssl
import threading

from relay import envelope, wire
from tests.nodes.websockets import Ended, ServerSocket, WebSocketServer


def key_of(peer_id: str) -> str:
    return f"node_{peer_id[:8]}.key-of-{peer_id}"


class MiniRelay:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.server = WebSocketServer(self._serve, tls)
        self.peers: dict[str, ServerSocket] = {}
        self.callers: list[ServerSocket] = []
        self.asked: list[wire.Request] = []  # what callers sent
        self.cancelled: list[str] = []
        self.refuse_rpc = False
        self.registered = threading.Semaphore(0)
        self._routes: dict[str, tuple[ServerSocket, str]] = {}
        self._numbers = itertools.count(1)

    def __enter__(self) -> MiniRelay:
        self.server.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.__exit__()

    @property
    def ws_url(self) -> str:
        return f"{self.server.url}/ws"

    def address(self, peer_id: str) -> str:
        return f"{self.server.url}/rpc/{peer_id}"

    def ask(self, peer_id: str, request: wire.Request, caller: ServerSocket | None = None) -> str:
        """Passes a request to a peer; answers go to the caller's socket. The id under which the peer knows it."""
        own = f"r{next(self._numbers)}"
        if caller:
            self._routes[own] = (caller, request.request_id)
        passed = dataclasses.replace(request, request_id=own)
        self.peers[peer_id].send(envelope.encode(passed, to_peer=True))
        return own

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
        assert json.loads(connection.receive()) == {"type": "register", "peer_id": peer_id}
        self.peers[peer_id] = connection
        connection.send(json.dumps({"type": "registered", "peer_id": peer_id, "relay_addr": self.address(peer_id)}))
        self.registered.release()
        try:
            while True:
                answer = envelope.decode_answer(connection.receive())
                caller, request_id = self._routes.get(answer.request_id, (None, ""))
                if caller:
                    caller.send(envelope.encode(dataclasses.replace(answer, request_id=request_id)))
        finally:
            if self.peers.get(peer_id) is connection:
                del self.peers[peer_id]

    def _serve_caller(self, connection: ServerSocket, sender: str, peer_id: str) -> None:
        self.callers.append(connection)
        open_ids = []
        try:
            while True:
                request = dataclasses.replace(envelope.decode_request(connection.receive()), sender=sender)
                self.asked.append(request)
                if peer_id not in self.peers:
                    gone = wire.error_response(request.request_id, wire.Code.PEER_GONE, "the peer isn't here")
                    connection.send(envelope.encode(gone))
                    continue
                open_ids.append(self.ask(peer_id, request, connection))
        except Ended:
            self.cancelled += open_ids
            raise
        finally:
            self.callers.remove(connection)
