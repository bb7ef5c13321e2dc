"""What is left in a mesh when all chats are over and nothing disturbs it any more."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from bench.disturbed import NODES, Disturbed
from bench.report import table
from tests.lab.processes import Process

REST_S = 30.0  # a node that missed the end of a session hears of it with its heartbeats
POLL_S = 0.5
_OUTPUT = re.compile(r"(?m)^Traceback.*(?:\n.*){0,25}")


@dataclass(frozen=True)
class Leftovers:
    """`tokens`: cached or reserved at the nodes; `kept_bytes`: of activations, at heads; `sessions`: that the site says
    run; `requests`: at the relay."""

    tokens: int
    kept_bytes: int
    sessions: int
    requests: int
    took_s: float
    nodes: dict[str, dict[str, Any]]
    tracebacks: list[str]

    @property
    def is_clean(self) -> bool:
        return not (self.tokens or self.kept_bytes or self.sessions or self.requests)

    def problems(self) -> list[str]:
        said = []
        if not self.is_clean:
            left = f"{self.tokens} tokens, {self.kept_bytes} bytes, {self.sessions} sessions, {self.requests} requests"
            said.append(f"left after {self.took_s:.0f} s: {left}")
        return said + [f"a fault of the program:\n{text}" for text in self.tracebacks[:3]]

    def table(self) -> str:
        names = ["chats", "sessions", "cached_tokens", "reserved_tokens", "kept_bytes", "threads", "files", "rss_mib"]
        rows = [[node, *(str(figures.get(name, "")) for name in names)] for node, figures in self.nodes.items()]
        return table(["left at", *(name.replace("_", " ") for name in names)], rows)


def wait_for_rest(mesh: Disturbed) -> Leftovers:
    """Until nothing is left, but no longer than REST_S."""
    began = time.monotonic()
    while not (left := _look(mesh, time.monotonic() - began)).is_clean:
        if left.took_s > REST_S:
            break
        time.sleep(POLL_S)
    return left


def _look(mesh: Disturbed, took_s: float) -> Leftovers:
    [[sessions]] = mesh.rows("SELECT count(*) FROM tracker_chatsession WHERE state = 'running'")
    nodes = {name: _health(mesh, name) | _of_process(mesh.nodes[name]) for name in NODES}
    tokens = sum(int(told["cached_tokens"]) + int(told["reserved_tokens"]) for told in nodes.values())
    said = [(name, process.output) for name, process in mesh.past] + [("web", mesh.site.log())]
    tracebacks = [f"{name}: {text}" for name, output in said for text in _OUTPUT.findall(output)]
    kept_bytes = sum(int(told["kept_bytes"]) for told in nodes.values())
    return Leftovers(tokens, kept_bytes, int(sessions), mesh.open_requests(), took_s, nodes, tracebacks)


def _health(mesh: Disturbed, name: str) -> dict[str, Any]:
    """A node that can't be asked yet counts as one that holds something."""
    try:
        told = mesh.health(name)
    except (OSError, AssertionError, requests.RequestException, ValueError):
        told = {}
    return {"cached_tokens": 1, "reserved_tokens": 0, "kept_bytes": 0} | told


def _of_process(process: Process) -> dict[str, Any]:
    status = Path(f"/proc/{process.pid}/status").read_text()
    figures = {name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("Threads", "VmRSS")}  # type: ignore[index]
    files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
    return {"threads": figures["Threads"], "files": files, "rss_mib": figures["VmRSS"] // 1024}
