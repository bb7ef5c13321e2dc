"""Processes a test starts: their output kept and awaited line by line, ended by the test whatever happens."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.namespaces import Namespace
from tests.lab.warm import Fork

_CHANCE = random.SystemRandom()  # no seed that two test processes share
ROOT = Path(__file__).resolve().parents[2]


def manage_py(python: str = sys.executable) -> list[str]:
    return [python, str(ROOT / "manage.py")]


def free_port() -> int:
    """A port to listen on in a moment: not of those that the system gives to anybody who doesn't care which."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _CHANCE.randrange(1024, ephemeral) if ephemeral > 2048 else 0
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what would steer Meshnet or a proxy, with `changes`."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    kept.pop("DJANGO_SETTINGS_MODULE", None)
    return kept | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | changes


class Process:
    """One running program. `output` grows while it runs. `warm`: if this interpreter runs it, fork it (see warm.py).

    `namespace`: the network it is in, where that isn't the machine's.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        *,
        warm: bool = False,
        namespace: Namespace | None = None,
    ) -> None:
        self.arguments = list(arguments)
        self._changed = threading.Condition()
        self._output = ""
        start = _forked if warm and self.arguments[0] == sys.executable else _started
        self._popen: subprocess.Popen[str] | Fork = start(self.arguments, dict(env or environment()), cwd, namespace)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def output(self) -> str:
        with self._changed:
            return self._output

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def wait_for(self, pattern: str, deadline_s: float = 60) -> re.Match[str]:
        """The first match of `pattern` in the output, past or to come."""
        until = time.monotonic() + deadline_s
        with self._changed:
            while (found := re.search(pattern, self._output)) is None:
                left = until - time.monotonic()
                if left <= 0 or (not self.is_running and not self._reader.is_alive()):
                    raise AssertionError(f"no {pattern!r} from {self.arguments[1:4]}:\n{self._output[-4000:]}")
                self._changed.wait(min(left, 0.2))
            return found

    def wait(self, deadline_s: float = 30) -> int:
        """The exit code."""
        code = self._popen.wait(deadline_s)
        self._reader.join(5)
        return code

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        self._popen.kill()
        self.wait()

    def stop(self, deadline_s: float = 20) -> int:
        """SIGTERM, and SIGKILL when that isn't heard in time. The exit code."""
        if self.is_running:
            self._popen.send_signal(signal.SIGCONT)
            self._popen.terminate()
        try:
            return self.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.arguments[1:4]} did not stop in {deadline_s} s:\n{self.output[-4000:]}"
            ) from None

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._changed:
                self._output += line
                self._changed.notify_all()


def _started(
    arguments: list[str], env: dict[str, str], cwd: Path, namespace: Namespace | None
) -> subprocess.Popen[str]:
    with namespace.entered() if namespace else contextlib.nullcontext():
        return subprocess.Popen(
            arguments,
            env=env,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )


def _forked(arguments: list[str], env: dict[str, str], cwd: Path, namespace: Namespace | None) -> Fork:
    return Fork(arguments[1], arguments[2:], env, cwd, namespace.path if namespace else "")


def manage(
    *arguments: str, env: Mapping[str, str] | None = None, deadline_s: float = 60, python: str = sys.executable
) -> str:
    """The standard output of a `manage.py` command that must succeed."""
    run = subprocess.run(
        [*manage_py(python), *arguments],
        env=dict(env or environment()),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, f"{arguments}: exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run.stdout.strip()


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which a process listens, read from /proc."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports
