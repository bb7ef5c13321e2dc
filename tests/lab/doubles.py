"""A mesh in which two nodes hold each shard, with a tap on all that reaches them: whoever is killed can be replaced.

with proxied_site(folder) as (site, tap):
    with Doubles(site, tap, model, "tunnel") as mesh:
        lost = mesh.kill_at("middle", 3)       # kill -9 when step 3 is about to reach the node in the middle
        answer = site.chat(mesh.model, "Hello")
        assert not lost.wait().is_answered
        mesh.mend()                            # starts the dead again
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import requests
import websocket

from relay import headers
from tests.lab.processes import Process, free_port
from tests.lab.site import Site
from tests.lab.tap import Asked, Steps, Tap, Trigger

CUTS = ("0:2", "2:5", "5:7")
WAYS: dict[str, tuple[str, ...]] = {
    "tunnel": ("--relay-only",),
    "relay": ("--relay-only",),
    "direct": ("--no-relay",),
}
NODE_PING_S = "3"  # a relay in a black hole is noticed within twice that
HOLDINGS = ("sessions", "cached_tokens", "reserved_tokens", "chats")


@contextlib.contextmanager
def proxied_site(folder: Path, **settings: str) -> Iterator[tuple[Site, Tap]]:
    """A site whose relay is reached past a tap."""
    site = Site(folder, **settings)
    with Tap(("127.0.0.1", site.port), Steps()) as tap:
        site.env["RELAY_URL"] = f"ws://127.0.0.1:{tap.port}"
        with site:
            yield site, tap


class Doubles:
    """`way`: how hops are reached. `copies`: nodes for each of the cuts."""

    def __init__(
        self, site: Site, tap: Tap, folder: Path, way: str, *options: str, copies: int = 2, cuts: tuple[str, ...] = CUTS
    ) -> None:
        self.site, self.tap, self.steps = site, tap, tap.steps
        self._folder, self._way, self._options, self._copies, self._cuts = folder, way, options, copies, cuts
        self.nodes: dict[str, Process] = {}  # by name
        self._layers: dict[str, str] = {}
        self._reach: dict[str, tuple[str, ...]] = {}
        self._taps: dict[str, Tap] = {}  # before the ports of those that listen
        self._names: dict[str, str] = {}  # by peer id

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._stop)
            for copy in range(self._copies):
                for layers in self._cuts:
                    self._add(f"{self.model}-{layers.replace(':', 'to')}-{copy}", layers, stack)
            self.wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def model(self) -> str:
        return self._folder.name

    def wait_until_ready(self) -> None:
        for name, node in self.nodes.items():
            node.wait_for("Ready: layers")
            self._names.setdefault(self.site.peer_id(name), name)
            if name in self._taps:
                self._taps[name].peer_id = self.site.peer_id(name)
        self.site.wait_for_model(self.model)

    def mend(self) -> None:
        """Starts again whoever is dead, waits until all are there, and forgets what was seen."""
        for name, node in self.nodes.items():
            if not node.is_running:
                self.site.nodes.remove(node)
                self._start(name)
        self.wait_until_ready()
        self.site.forgive()
        self.steps.clear()

    def name(self, peer_id: str) -> str:
        return self._names[peer_id]

    def key_id(self, peer_id: str) -> str:
        """Faults of the tap go by it."""
        return self.site.node_key(self.name(peer_id)).split(".")[0]

    def kill_at(self, role: str, step: int) -> Trigger:
        """The head dies when the node after it is about to get the step; what that answers reaches nobody."""
        return self.steps.at(at_step(role, step), lambda asked: self.send(victim_of(role, asked), signal.SIGKILL))

    def send(self, peer_id: str, number: signal.Signals) -> None:
        """Also from a trigger."""
        self.nodes[self._names[peer_id]].send(number)

    def health(self, name: str) -> dict[str, Any]:
        if self._way == "direct":
            return dict(requests.get(f"http://127.0.0.1:{self._port(name)}/health", timeout=5).json())
        return self.site.health(name, next(other for other in self.nodes if other != name))

    def held(self) -> dict[str, Any]:
        """What the nodes hold of sessions, where they hold anything or can't be asked now."""
        asked = {name: self._held(name) for name, node in self.nodes.items() if node.is_running}
        return {name: held for name, held in asked.items() if held}

    def wait_until_free(self, deadline_s: float = 20) -> None:
        until = time.monotonic() + deadline_s
        while held := self.held():
            assert time.monotonic() < until, f"caches aren't freed: {held}"
            time.sleep(0.1)

    def _held(self, name: str) -> Any:
        try:
            health = self.health(name)
            return {what: health[what] for what in HOLDINGS if health[what]}
        except (OSError, websocket.WebSocketException, AssertionError, KeyError) as error:
            return repr(error)

    def _add(self, name: str, layers: str, stack: ExitStack) -> None:
        self._layers[name] = layers
        if self._way == "direct":
            port = free_port()
            tap = self._taps[name] = stack.enter_context(Tap(("127.0.0.1", port), self.steps))
            public_url = f"http://127.0.0.1:{tap.port}"
            self._reach[name] = (*WAYS["direct"], "--listen", f"127.0.0.1:{port}", "--public-url", public_url)
        else:
            self._reach[name] = WAYS[self._way]
        self._start(name)

    def _start(self, name: str) -> None:
        env = {"MESHNET_RELAY_PING_S": NODE_PING_S} | ({"MESHNET_WIRE_VERSIONS": "1"} if self._way == "relay" else {})
        options = ("--dtype", "float32", "--drafts", "off", *self._reach[name], *self._options)
        self.nodes[name] = self.site.start_node(name, self._folder, self._layers[name], *options, **env)

    def _port(self, name: str) -> int:
        return self._taps[name].upstream_address[1]

    def _stop(self) -> None:
        """All at once: each waits for its own last steps."""
        for node in self.nodes.values():
            if node.is_running:
                node.send(signal.SIGCONT)
                node.send(signal.SIGTERM)
        for node in self.nodes.values():
            node.stop()
            self.site.nodes.remove(node)


def at_step(role: str, step: int, epoch: int = 0) -> Callable[[Asked], bool]:
    """The step as it reaches the role's node; of the head, as it reaches the next."""
    start = {"first": 2, "middle": 2, "last": 5}[role]

    def is_it(asked: Asked) -> bool:
        return asked.is_step and (asked.epoch, asked.step, asked.start_layer) == (epoch, step, start)

    return is_it


def victim_of(role: str, asked: Asked) -> str:
    return head_of(asked) if role == "first" else asked.peer_id


def head_of(asked: Asked) -> str:
    return headers.decode_ticket(asked.header(headers.TICKET))[0].head
