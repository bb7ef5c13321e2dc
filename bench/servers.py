"""Servers under load, each a `manage.py serve` of its own on a free port, and what /proc says of them."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from tests.lab.processes import Process, environment, manage, manage_py
from tests.lab.redis import Redis

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Server:
    """`settings` name the module; `folder` holds its database, none is made without one."""

    def __init__(self, settings: str, folder: Path | None = None, **env: str) -> None:
        data = {"DATA_DIR": str(folder)} if folder else {}
        self.env = environment(DJANGO_SETTINGS_MODULE=settings, LOG_LEVEL="WARNING", **data, **env)
        self.has_database = folder is not None

    def __enter__(self) -> Server:
        if self.has_database:
            manage("migrate", "--verbosity", "0", env=self.env)
        self.process = Process([*manage_py(), "serve", "--port", "0", "--grace", "1"], self.env | {"LOG_LEVEL": "INFO"})
        self.port = int(self.process.wait_for(r"Listening on http://127\.0\.0\.1:(\d+)")[1])
        self.url = f"ws://127.0.0.1:{self.port}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error:
            print(self.process.output[-4000:])
            self.process.send(signal.SIGKILL)
        self.process.stop()

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def rss_kib(self) -> int:
        return rss_kib(self.process.pid)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])


@contextmanager
def two_over_redis(folder: Path) -> Iterator[tuple[Server, Server, Redis]]:
    with Redis(folder / "redis") as redis, ExitStack() as stack:
        here, there = (Server("bench.settings", folder / name, REDIS_URL=redis.url) for name in ("here", "there"))
        yield stack.enter_context(here), stack.enter_context(there), redis


def allow_many_files() -> None:
    """A thousand sockets are more than a process may have by default; those started after this inherit it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
