"""A Redis of the test's own: Debian's redis-server on a free port, nothing kept, ended with the test."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from tests.lab.processes import Process, environment, free_port


class Redis:
    """`url` stays the same over a `restart`, as a service's does. `options`: lines of redis.conf."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = [option for line in options for option in _flag(line)]
        self.process: Process | None = None

    def __enter__(self) -> Redis:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        program = shutil.which("redis-server") or "/usr/bin/redis-server"
        settings = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        settings += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        self.process = Process([program, *settings, *self._options], environment())
        self.process.wait_for("Ready to accept connections", 20)

    def stop(self) -> None:
        if self.process and self.process.is_running:
            self.process.stop()

    def kill(self) -> None:
        """As when the machine is gone: nothing is said to its clients."""
        assert self.process
        self.process.kill()

    def freeze(self) -> None:
        """It answers nothing and ends nothing, until `thaw`."""
        assert self.process
        self.process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process
        self.process.send(signal.SIGCONT)


def _flag(line: str) -> list[str]:
    """A line of redis.conf as command line arguments."""
    name, *values = line.split()
    return [f"--{name}", *values]
