"""Several `manage.py serve` processes of one site, and the Redis that joins them."""

from __future__ import annotations

import time
from pathlib import Path

import websocket

from relay import envelope
from relay.wire import Answer, Request
from tests.lab.redis import Redis
from tests.relay.conftest import Relay


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
