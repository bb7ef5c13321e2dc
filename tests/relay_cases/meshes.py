"""Nodes for the relay's cases: bridges with an engine that counts, in this process, and a mesh of real processes."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodes import sources
from nodes.backoff import Backoff
from nodes.bridge import RelayHttpBridge
from nodes.deadline import Deadline
from nodes.tunnel import Tunnel
from relay import headers as names
from relay.wire import PING_S
from tests.lab.postgres import Postgres
from tests.lab.processes import Process
from tests.lab.redis import Redis
from tests.lab.split import SplitSite
from tests.nodes.meshes import Signer, TestNode, shared_tls
from tests.nodes.models import make_tiny_llama
from tests.relay.credentials import credential
from tracker.tickets import SigningKey, sign


def peer_id_of(number: int) -> str:
    return f"{number:032x}"


@dataclass
class Bridged:
    """A node's own connection to a relay; `tunnel` asks over it, where it speaks version 2."""

    peer_id: str
    bridge: RelayHttpBridge
    tunnel: Tunnel

    @property
    def connected(self) -> threading.Event:
        return self.bridge.connected


@contextlib.contextmanager
def bridges(
    ws_url: str,
    number: int = 1,
    *,
    first: int = 1,
    version: int = 2,
    ping_s: float = PING_S,
    backoff_s: float | None = None,
) -> Iterator[list[Bridged]]:
    """Connecting when this begins. Peer ids: `peer_id_of(first)` and so on. `backoff_s`: instead of a node's own."""
    with contextlib.ExitStack() as stack:
        made = []
        for index in range(first, first + number):
            node = TestNode(index, (2, 4), 4, Signer(), None, lambda *_: 0, 8, shared_tls(), [1], "relay")
            stack.callback(node.close)
            tunnel = Tunnel()
            bridge = RelayHttpBridge(
                node.api,
                f"{ws_url}/ws",
                node.peer_id,
                credential(node.peer_id),
                shared_tls(),
                backoff=Backoff(backoff_s, backoff_s) if backoff_s else None,
                tunnel=tunnel if version == 2 else None,
                ping_s=ping_s,
            )
            stack.callback(bridge.stop, Deadline.after(5))
            made.append(Bridged(node.peer_id, bridge, tunnel))
        for bridged in made:
            bridged.bridge.start()
        yield made


LAYERS = ["0:2", "2:4"]
NAMES = ("head", "tail")


@dataclass
class RealMesh:
    """A head that accepts no connection and a tail that listens too, of a tiny model; tickets as the tracker's."""

    site: SplitSite
    folder: Path
    key: SigningKey
    nodes: list[Process] = field(default_factory=list)

    def start(self) -> None:
        reach = {"head": ("--relay-only",), "tail": ("--listen", "auto")}
        pairs = zip(NAMES, LAYERS, strict=True)
        self.nodes = [self.site.start_node(name, self.folder, layers, *reach[name]) for name, layers in pairs]
        for node in self.nodes:
            node.wait_for("Ready: layers")
        self.site.wait_for_model(self.model)

    @property
    def model(self) -> str:
        return self.folder.name

    @property
    def width(self) -> int:
        return int(json.loads((self.folder / "config.json").read_text())["hidden_size"])

    @property
    def tail_port(self) -> int:
        arguments = self.nodes[1].arguments
        return int(arguments[arguments.index("--listen") + 1].split(":")[1])

    def step_headers(self, **changes: str | None) -> dict[str, str]:
        """Of a first step of a session of its own, of three tokens, for the tail. `changes`: None leaves one out."""
        session = secrets.token_hex(16)
        hops = [(self.site.peer_id(name), *map(int, cut.split(":"))) for name, cut in zip(NAMES, LAYERS, strict=True)]
        ticket = sign(
            self.key,
            session=session,
            epoch=0,
            fingerprint=sources.open_model(self.folder).fingerprint,
            hops=hops,  # type: ignore[arg-type]
            dtype="bfloat16",
            max_tokens=100,
            seed=1,
            expires=int(time.time()) + 600,
        )
        headers: dict[str, Any] = {
            names.SESSION: session,
            names.EPOCH: "0",
            names.STEP: "0",
            names.POSITION: "0",
            names.SHAPE: f"1,3,{self.width}",
            names.DTYPE: "bfloat16",
            names.START_LAYER: "2",
            names.END_LAYER: "4",
            names.TOKENS: "1,2,3",
            names.SAMPLING: json.dumps({"temperature": 0, "top_p": 1, "seed": 1}),
            names.TICKET: ticket,
            names.RESERVE: "16",
        }
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        return {name: value for name, value in headers.items() if value is not None}

    def body(self, num_tokens: int = 3) -> bytes:
        return bytes(2 * num_tokens * self.width)


@contextlib.contextmanager
def real_mesh(folder: Path, **settings: str) -> Iterator[RealMesh]:
    key = SigningKey.generate()
    make_tiny_llama(folder / "tiny", num_layers=4)
    with Postgres() as database, Redis(folder / "redis") as redis:
        site = SplitSite(folder, database, redis, TICKET_KEYS=key.text, **settings)
        with site:
            mesh = RealMesh(site, folder / "tiny", key)
            mesh.start()
            yield mesh
