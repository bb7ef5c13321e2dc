"""Several `manage.py serve` processes of one site, and the Redis that joins them."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import websocket

from relay import envelope
from relay.wire import Answer, Cancel, Request, Response, WireError
from tests.lab.redis import Redis
from tests.relay.conftest import Relay
from tests.relay.ends import told

WAIT = b"wait"


class Site:
    """Processes `a` and `b`; more by `serve`."""

    def __init__(self, folder: Path, names: str = "ab") -> None:
        self.redis = Redis(folder)
        self.redis.start()
        self.relays = {name: self.serve(name) for name in names}

    @property
    def a(self) -> Relay:
        return self.relays["a"]

    @property
    def b(self) -> Relay:
        return self.relays["b"]

    def serve(self, name: str) -> Relay:
        relay = Relay("--grace", "5", REDIS_URL=self.redis.url, RELAY_URL=f"ws://{name}.example")
        relay.process.wait_for("Joined over Redis")
        return relay

    def close_sockets(self) -> None:
        for relay in self.relays.values():
            relay.close_sockets()

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{relay.process.output}" for name, relay in self.relays.items())

    def close(self) -> None:
        self.close_sockets()
        for relay in self.relays.values():
            if relay.process.is_running:
                assert relay.process.stop() == 0
        self.redis.stop()
        for relay in self.relays.values():
            assert "Traceback" not in relay.process.output, relay.process.output


def wait_until_known(relay: Relay, peer_id: str, where: str | None, deadline_s: float = 5) -> None:
    """Until the process says that the peer is at `where`; "" is itself, None nowhere."""
    until = time.monotonic() + deadline_s
    while (now := relay.get("/figures").json()["where"].get(peer_id)) != where:
        assert time.monotonic() < until, f"{peer_id} is at {now!r}, not {where!r}"
        time.sleep(0.02)


def connected(site: Site, peer_id: str = "aa11") -> tuple[websocket.WebSocket, websocket.WebSocket]:
    """A peer at b, and a caller of it at a."""
    peer = site.b.register(peer_id)
    wait_until_known(site.a, peer_id, "ws://b.example")
    return peer, site.a.connect(f"/rpc/{peer_id}", site.a.credential("cc33"))


def ask(caller: websocket.WebSocket, request_id: str = "1", body: bytes = b"", deadline_ms: int | None = None) -> None:
    request = Request(request_id, "POST", "/forward", {"x-a": "1"}, body, deadline_ms=deadline_ms)
    caller.send(envelope.encode(request))


def answer(peer: websocket.WebSocket, frame: Answer) -> None:
    peer.send(envelope.encode(frame))


class Serving:
    """A registered peer that answers at once, but for what asks it to `wait`; keeps what it was told."""

    def __init__(self, relay: Relay, peer_id: str) -> None:
        self.heard: list[Request | Cancel] = []
        self.ws = relay.register(peer_id, timeout=60)
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wait_for(self, kind: type[Request] | type[Cancel], number: int = 1, deadline_s: float = 10) -> Request | Cancel:
        """The first, second… frame of its kind."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._of(kind)) >= number, deadline_s), self.heard
            return self._of(kind)[number - 1]

    def _of(self, kind: type[Request] | type[Cancel]) -> list[Request | Cancel]:
        return [frame for frame in self.heard if isinstance(frame, kind)]

    def _serve(self) -> None:
        with contextlib.suppress(OSError, AssertionError, WireError, websocket.WebSocketException):  # its end
            while True:
                frame = told(self.ws)
                with self._changed:
                    self.heard.append(frame)
                    self._changed.notify_all()
                if isinstance(frame, Request) and frame.body != WAIT:
                    answer(self.ws, Response(frame.request_id, 200, body=frame.body))
