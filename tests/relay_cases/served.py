"""Real servers for the relay's cases: `manage.py serve` around the relay alone, behind a proxy that can break."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, cast

import requests

from tests.lab import ends, record, tunnel
from tests.lab.faultproxy import FaultProxy
from tests.lab.processes import Process, environment, free_port, manage_py
from tests.relay.credentials import SCOPE, credential

LANGUAGES: dict[int, Any] = {1: record, 2: tunnel}
VERSIONS = [1]  # TODO


def echo(envelope: ends.Envelope, body: bytes) -> ends.Answer:
    return 200, {"content-type": "application/octet-stream"}, body


class Served:
    """One relay process on a port that stays its own over a restart. A context."""

    def __init__(self, **settings: str) -> None:
        self.port = free_port()
        self.env = environment(DJANGO_SETTINGS_MODULE="tests.relay.settings", **settings)
        self.address = ("127.0.0.1", self.port)
        self.http_url, self.ws_url = f"http://127.0.0.1:{self.port}", f"ws://127.0.0.1:{self.port}"
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

    def kill(self) -> None:
        assert self.process
        self.process.kill()

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


class World:
    """A relay, and ends of it in one wire version that are gone when the test is."""

    def __init__(self, served: Served, version: int, proxy: FaultProxy | None = None) -> None:
        self.served, self.version, self.proxy = served, version, proxy
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def peer(
        self,
        peer_id: str = "aa11",
        serve: ends.Serve | None = None,
        *,
        scope: str = SCOPE,
        reads: bool = True,
        version: int = 0,
        proxied: bool = False,
    ) -> ends.Peer:
        """Registered when this returns."""
        kind = LANGUAGES[version or self.version].Peer
        made: ends.Peer = kind(f"{self._url(proxied)}/ws", peer_id, credential(peer_id, scope), serve, reads=reads)
        self._stack.callback(made.die)
        assert made.is_registered, made.welcome
        return made

    def caller(
        self,
        to: str = "aa11",
        peer_id: str = "cc33",
        *,
        scope: str = SCOPE,
        version: int = 0,
        proxied: bool = False,
        timeout_s: float = 20,
    ) -> ends.Asking:
        """Version 1: on /rpc. Version 2: on its own /ws, as a node asks."""
        made: ends.Asking
        if (version or self.version) == 1:
            url = f"{self._url(proxied)}/rpc/{to}"
            made = record.Caller(url, credential(peer_id, scope), timeout_s=timeout_s)
        else:
            made = tunnel.Asker(f"{self._url(proxied)}/ws", peer_id, credential(peer_id, scope), to)
        self._stack.callback(made.die)
        return made

    def _url(self, proxied: bool) -> str:
        return f"ws://127.0.0.1:{self.proxy.port}" if proxied and self.proxy else self.served.ws_url


def resident_mib(pid: int, line: str = "VmRSS") -> float:
    [value] = re.findall(rf"^{line}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(value) / 1024
