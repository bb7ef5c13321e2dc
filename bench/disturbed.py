"""A mesh that faults can befall: a site of two processes, proxies before both, five nodes that can stand in for one
another.

Nodes reach the site, for its API and for the relay, through the proxies alone, so one node can be cut off from
everything. Each of the five can be lost: of two that hold a layer one is left, or a row of others is.
"""

from __future__ import annotations

import contextlib
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import requests

from bench.faults import Fault
from tests.lab.faultproxy import FaultProxy
from tests.lab.postgres import Postgres
from tests.lab.processes import Process
from tests.lab.redis import Redis
from tests.lab.split import SplitSite
from tests.nodes.models import make_tiny_llama

MODEL = "tiny"
NUM_LAYERS = 6
READY_S = 180.0  # a machine may have much else to do
_KEY_ID = re.compile(rb"(?i)\r\nauthorization: bearer ([^.\s]+)\.")
_DIRECT = ("--listen", "auto")
NODES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {  # name: layers, options, environment
    "first": ("0:2", ("--relay-only",), {}),
    "middle": ("2:4", _DIRECT, {}),
    "last": ("4:6", ("--relay-only",), {}),
    "spare-head": ("0:4", ("--relay-only", "--keep-activations", "0"), {"MESHNET_WIRE_VERSIONS": "1"}),
    "spare-tail": ("2:6", _DIRECT, {}),
}
SETTINGS = {"REQUEST_DEADLINE_S": "60", "RELAY_PING_S": "3"}
COMMON = ("--dtype", "float32", "--patience", "2", "--max-kv-tokens", "20000")


class Disturbed:
    """A context. `fault` befalls it until its time is over."""

    def __init__(self) -> None:
        self.nodes: dict[str, Process] = {}
        self.past: list[tuple[str, Process]] = []  # every process there was
        self._keys: dict[bytes, str] = {}  # key id of a node: its name
        self._lock, self._taken = threading.Lock(), set[str]()
        self._stack = ExitStack()

    def __enter__(self) -> Disturbed:
        enter = self._stack.enter_context
        folder = Path(enter(tempfile.TemporaryDirectory()))
        self.model = make_tiny_llama(folder / MODEL, num_layers=NUM_LAYERS)
        database, redis = enter(Postgres()), enter(Redis(folder / "redis"))
        self.web_proxy = enter(FaultProxy(("127.0.0.1", 0), self._whose))
        self.relay_proxy = enter(FaultProxy(("127.0.0.1", 0), self._whose))
        urls = {"public_url": self._url(self.web_proxy), "relay_url": self._url(self.relay_proxy, "ws")}
        self.site = SplitSite(folder, database, redis, **urls, **SETTINGS)
        self.web_proxy.upstream_address = ("127.0.0.1", self.site.port)
        self.relay_proxy.upstream_address = ("127.0.0.1", self.site.relay_port)
        enter(self.site)
        self._remember()
        self.site.model(MODEL, wire_dtype="float32", prefill_chunk="32")
        for name in NODES:
            self._start(name)
        for name in NODES:
            self._wait_until_ready(name)
            self._keys[self.site.node_key(name).partition(".")[0].encode()] = name
        self.site.wait_for_model(MODEL)
        self.web_proxy.cut("/")  # opened with the join token: nobody's yet
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.__exit__(*exc)

    def suffer(self, fault: Fault) -> str | None:
        """Until it is over and its victim works again. Whom it befell; None: nobody was well enough."""
        if fault.kind == "relay":
            self._without_relay(fault.lasts_s)
            return "relay"
        victim = self._take(fault.order)
        if victim is None:
            return None
        try:
            _BEFALL[fault.kind](self, victim, fault)
        finally:
            with self._lock:
                self._taken.discard(victim)
        return victim

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.site.database.url) as connection:
            return connection.execute(query).fetchall()

    def health(self, name: str) -> dict[str, Any]:
        """As another node sees it."""
        other = next(asker for asker in NODES if asker != name)
        return self.site.health(name, other)

    def open_requests(self) -> int:
        """At both processes of the site."""
        ports = (self.site.port, self.site.relay_port)
        told = [requests.get(f"http://127.0.0.1:{port}/metrics", timeout=20).text for port in ports]
        figures = [re.search(r"(?m)^meshnet_relay_requests_in_flight (\S+)", text) for text in told]
        return sum(int(float(found[1])) for found in figures if found)

    def kill(self, victim: str, fault: Fault) -> None:
        self.nodes[victim].kill()
        time.sleep(fault.lasts_s)
        self._start(victim)
        self._wait_until_ready(victim)

    def stop(self, victim: str, fault: Fault) -> None:
        self.nodes[victim].send(signal.SIGSTOP)
        time.sleep(fault.lasts_s)
        self.nodes[victim].send(signal.SIGCONT)

    def cut(self, victim: str, fault: Fault) -> None:
        with self._on_both(lambda proxy: proxy.fail(f"{victim} ", "refuse"), victim):
            self._reset(victim)
            time.sleep(fault.lasts_s)

    def delay(self, victim: str, fault: Fault) -> None:
        with self._on_both(lambda proxy: proxy.delay(f"{victim} ", fault.delay_ms), victim):
            time.sleep(fault.lasts_s)

    def hole(self, victim: str, fault: Fault) -> None:
        """Bytes that a hole has lost aren't sent again here: its connections are dead, and noticed or reset."""
        with self._on_both(lambda proxy: proxy.fail(f"{victim} ", "blackhole"), victim):
            time.sleep(fault.lasts_s)
        if not fault.is_held:
            self._reset(victim)

    def _without_relay(self, lasts_s: float) -> None:
        self.site.kill_relay()
        time.sleep(lasts_s)
        self.site.start_relay()
        self._remember()

    @contextlib.contextmanager
    def _on_both(self, begin: Callable[[FaultProxy], None], victim: str) -> Iterator[None]:
        for proxy in (self.web_proxy, self.relay_proxy):
            begin(proxy)
        yield
        for proxy in (self.web_proxy, self.relay_proxy):
            proxy.heal(f"{victim} ")

    def _reset(self, victim: str) -> None:
        for proxy in (self.web_proxy, self.relay_proxy):
            proxy.cut(f"{victim} ")

    def _take(self, order: tuple[str, ...]) -> str | None:
        """The first of these that nothing befalls now, and that works."""
        with self._lock:
            for name in order:
                if name not in self._taken and self.nodes[name].is_running:
                    self._taken.add(name)
                    return name
        return None

    def _start(self, name: str) -> None:
        layers, options, env = NODES[name]
        if name in self.nodes:
            self.site.nodes.remove(self.nodes[name])
        self.nodes[name] = self.site.start_node(name, self.model, layers, *options, *COMMON, **env)
        self.past.append((name, self.nodes[name]))

    def _wait_until_ready(self, name: str) -> None:
        self.nodes[name].wait_for("Ready: layers", READY_S)

    def _remember(self) -> None:
        assert self.site.relay
        self.past.append(("relay", self.site.relay))

    def _whose(self, head: bytes) -> str:
        found = _KEY_ID.search(head)
        return self._keys.get(found[1], "") if found else ""

    @staticmethod
    def _url(proxy: FaultProxy, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{proxy.port}"


_BEFALL = {
    "kill": Disturbed.kill,
    "stop": Disturbed.stop,
    "cut": Disturbed.cut,
    "delay": Disturbed.delay,
    "hole": Disturbed.hole,
}
