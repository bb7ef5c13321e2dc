"""Real servers for the relay's cases: `manage.py serve` around the relay alone, behind a proxy that can break."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import requests

from tests.lab import ends, record, tunnel
from tests.lab.ends import eventually
from tests.lab.processes import Process, environment, free_port, manage_py
from tests.lab.redis import Redis
from tests.relay.credentials import SCOPE, credential

LANGUAGES: dict[int, Any] = {1: record, 2: tunnel}
VERSIONS = sorted(LANGUAGES)


def echo(envelope: ends.Envelope, body: bytes) -> ends.Answer:
    return 200, {"content-type": "application/octet-stream"}, body


class Served:
    """One relay process on a port that stays its own over a restart. A context."""

    def __init__(self, **settings: str) -> None:
        self.port = free_port()
        self.address = ("127.0.0.1", self.port)
        self.http_url, self.ws_url = f"http://127.0.0.1:{self.port}", f"ws://127.0.0.1:{self.port}"
        self.joins_others = "REDIS_URL" in settings
        self.env = environment(DJANGO_SETTINGS_MODULE="tests.relay.settings", RELAY_URL=self.ws_url, **settings)
        self.process: Process | None = None

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process and self.process.is_running:
            self.process.stop()

    def start(self) -> None:
        self.process = Process([*manage_py(), "serve", "--port", str(self.port), "--grace", "2"], self.env)
        self.process.wait_for("Listening on")
        if self.joins_others:
            self.process.wait_for("Joined over Redis")

    def kill(self) -> None:
        assert self.process
        self.process.kill()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    @property
    def output(self) -> str:
        return self.process.output if self.process else ""

    def figures(self) -> dict[str, Any]:
        """What it has counted, and who is connected."""
        return cast(dict[str, Any], requests.get(f"{self.http_url}/figures", timeout=10).json())

    def resident_mib(self) -> float:
        return resident_mib(self.pid)

    def forget_peak(self) -> None:
        """From here on `peak_mib` counts. Linux: proc(5), clear_refs."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_mib(self) -> float:
        return resident_mib(self.pid, "VmHWM")


@dataclass
class Deployment:
    """Where callers connect, and where peers do: one process, or two of one site over Redis."""

    callers_at: Served
    peers_at: Served

    def wait_until_known(self, peer_id: str, *, deadline_s: float = 5) -> None:
        """News of a registration cross within a moment."""
        where = "" if self.callers_at is self.peers_at else self.peers_at.ws_url
        eventually(lambda: self.callers_at.figures()["where"].get(peer_id) == where, deadline_s)


@contextlib.contextmanager
def two_processes(folder: Path, **settings: str) -> Iterator[Deployment]:
    with Redis(folder) as redis, contextlib.ExitStack() as stack:
        made = [stack.enter_context(Served(REDIS_URL=redis.url, **settings)) for _ in range(2)]
        yield Deployment(*made)


class World:
    """A relay, and ends of it in one wire version that are gone when the test is."""

    def __init__(self, deployment: Deployment, version: int) -> None:
        self.callers_at, self.peers_at = deployment.callers_at, deployment.peers_at
        self._deployment, self.version = deployment, version
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def present(self) -> set[str]:
        """Peers that the callers' process knows of."""
        return set(self.callers_at.figures()["peers"])

    def peer(
        self,
        peer_id: str = "aa11",
        serve: ends.Serve | None = None,
        *,
        scope: str = SCOPE,
        reads: bool = True,
        version: int = 0,
        at: str = "",
    ) -> ends.Peer:
        """Registered and known when this returns. `at`: another address of the relay, a proxy's."""
        kind = LANGUAGES[version or self.version].Peer
        url = f"{at or self.peers_at.ws_url}/ws"
        made: ends.Peer = kind(url, peer_id, credential(peer_id, scope), serve, reads=reads)
        self._stack.callback(made.die)
        assert made.is_registered, made.welcome
        if self.callers_at is not self.peers_at:
            self._deployment.wait_until_known(peer_id)
        return made

    def caller(
        self, to: str = "aa11", peer_id: str = "cc33", *, scope: str = SCOPE, version: int = 0, at: str = ""
    ) -> ends.Asking:
        """Version 1: on /rpc. Version 2: on its own /ws, as a node asks."""
        url, key = at or self.callers_at.ws_url, credential(peer_id, scope)
        made: ends.Asking
        if (version or self.version) == 1:
            made = record.Caller(f"{url}/rpc/{to}", key)
        else:
            made = tunnel.Asker(f"{url}/ws", peer_id, key, to)
        self._stack.callback(made.die)
        return made


def resident_mib(pid: int, line: str = "VmRSS") -> float:
    [value] = re.findall(rf"^{line}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(value) / 1024
