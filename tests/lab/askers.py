"""Many threads that ask one node over another's tunnel, through a real relay, and check every byte of every answer.

Both nodes are connections of this process without a model: the one that is asked answers with the question's digest and
its bytes. What is tried is what lies between: the frames, the relay, and the TLS socket that all of them share.
"""

from __future__ import annotations

import hashlib
import random
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from nodes.answers import answer_now
from nodes.api import NodeApi
from nodes.bridge import RelayHttpBridge
from nodes.deadline import Deadline
from nodes.events import Answer
from nodes.hops import HopError, TunnelHop
from nodes.tunnel import Tunnel
from relay import wire
from tests.lab.site import Site

MODEL = {"name": "echo", "fingerprint": "e" * 64, "num_layers": 2, "hidden_size": 8, "context_length": 64}
SIZES = (1200, 1200, 1200, 8000, 150_000)  # of a token's step, of a larger model's, of a piece of a prompt
ANSWER_DEADLINE_S = 20.0


class Echo:
    """In the place of NodeApi."""

    def begin(self, request: wire.Request, door: str) -> Future[Answer]:
        content = hashlib.sha256(request.body).digest() + request.body
        return answer_now(wire.Response(request.request_id, 200, {"content-type": "application/octet-stream"}, content))


@dataclass
class Outcome:
    num_wrong: int = 0
    failures: list[str] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, other: Outcome) -> None:
        self.num_wrong += other.num_wrong
        self.failures += other.failures
        self.took_ms += other.took_ms
        self.num_bytes += other.num_bytes


@contextmanager
def connected(site: Site, tls: ssl.SSLContext, name: str, tunnel: Tunnel) -> Iterator[str]:
    """A node of the echo model, enrolled and on the relay; its peer_id."""
    made = site.register(site.join_token, name=name, model=MODEL)
    api = cast(NodeApi, Echo())
    bridge = RelayHttpBridge(api, made["relay_url"], made["peer_id"], made["node_key"], tls, tunnel=tunnel)
    bridge.start()
    try:
        assert bridge.connected.wait(10), f"{name} isn't connected: {site.log()[-2000:]}"
        yield str(made["peer_id"])
    finally:
        bridge.stop(Deadline.after(5))


def ask_for(site: Site, tls: ssl.SSLContext, num_askers: int, duration_s: float) -> Outcome:
    """`num_askers` threads in lockstep on one tunnel for so long. Connections that were lost count as failures."""
    tunnel = Tunnel()
    before = site.log().count(" is here from ")
    whole = Outcome()
    with connected(site, tls, "asked", Tunnel()) as peer_id, connected(site, tls, "asker", tunnel):
        start, until = threading.Barrier(num_askers), time.monotonic() + duration_s
        with ThreadPoolExecutor(num_askers) as threads:
            for outcome in threads.map(
                lambda seed: _ask(TunnelHop(tunnel, peer_id), start, until, seed), range(num_askers)
            ):
                whole.add(outcome)
        num_lost = site.log().count(" is here from ") - before - 2
    whole.failures += ["a connection was lost"] * num_lost
    return whole


def _ask(hop: TunnelHop, start: threading.Barrier, until: float, seed: int) -> Outcome:
    chance, outcome = random.Random(seed), Outcome()
    start.wait(10)
    while time.monotonic() < until:
        body = chance.randbytes(chance.choice(SIZES))
        began = time.monotonic()
        try:
            answer = hop.ask("POST", "/forward", {"x-asker": str(seed)}, body, Deadline.after(ANSWER_DEADLINE_S))
        except HopError as error:
            outcome.failures.append(error.cause)
            time.sleep(0.1)
            continue
        if answer.status != 200:
            outcome.failures.append(": ".join(wire.error_of(answer.status, answer.body)))
            continue
        outcome.took_ms.append((time.monotonic() - began) * 1000)
        outcome.num_bytes += len(body) + len(answer.body)
        outcome.num_wrong += answer.body != hashlib.sha256(body).digest() + body
    return outcome
