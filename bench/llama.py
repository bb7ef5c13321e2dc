"""llama.cpp's own figures, where LLAMA_BENCH and LLAMA_RPC_SERVER name its binaries: alone, and over two RPC servers.

The model is the catalogue's GGUF file, 4 bits a weight. Each round is a run of `llama-bench`, which warms up by itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.lab.processes import Process, free_port

DEADLINE_S = 120.0
NUM_SERVERS = 2


class Llama:
    """A context, in which the RPC servers run."""

    def __init__(self, bench: str, rpc_server: str, gguf: Path) -> None:
        self._bench, self._rpc_server, self._gguf = bench, rpc_server, gguf
        self._servers: list[Process] = []
        self._addresses: list[str] = []

    def __enter__(self) -> Llama:
        for _ in range(NUM_SERVERS):
            port = free_port()
            self._servers.append(Process([self._rpc_server, "-t", "1", "-H", "127.0.0.1", "-p", str(port)]))
            self._addresses.append(f"127.0.0.1:{port}")
            _wait_for_port(port)
        return self

    def __exit__(self, *exc: object) -> None:
        for server in self._servers:
            server.kill()

    @property
    def num_bytes(self) -> int:
        return self._gguf.stat().st_size

    def decode(self, num_tokens: int, *, is_split: bool) -> float:
        """Tokens per second."""
        return self._run(["-p", "0", "-n", str(num_tokens)], is_split)

    def prefill(self, num_tokens: int) -> float:
        """Tokens per second."""
        return self._run(["-p", str(num_tokens), "-n", "0"], is_split=False)

    def _run(self, test: Sequence[str], is_split: bool) -> float:
        command = [self._bench, "-m", str(self._gguf), "-t", "1", "-r", "1", "-o", "json", *test]
        command += ["--rpc", ",".join(self._addresses)] if is_split else []
        run = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
        assert run.returncode == 0, f"{command}: exit {run.returncode}\n{run.stderr[-2000:]}"
        [result] = json.loads(run.stdout)
        return float(result["avg_ts"])


def binaries() -> tuple[str, str] | None:
    """llama-bench and rpc-server, where both are named."""
    bench, rpc_server = os.environ.get("LLAMA_BENCH", ""), os.environ.get("LLAMA_RPC_SERVER", "")
    return (bench, rpc_server) if bench and rpc_server else None


def _wait_for_port(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"no RPC server listens on port {port}")
