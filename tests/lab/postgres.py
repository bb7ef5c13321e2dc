"""A PostgreSQL of the test's own: Debian's server in a folder of its own, on a free port, ended with the test.

PostgreSQL refuses to run as root; there it runs as the user `postgres`, which Debian's package makes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.lab.processes import Process, environment, free_port

USER = "postgres"
_AS_USER = ["runuser", "-u", USER, "--"]


class Postgres:
    """`url` is what DATABASE_URL wants. Its folder lies under /tmp: a folder of pytest's is closed to other users."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"postgres://{USER}@127.0.0.1:{self.port}/meshnet"
        self.process: Process | None = None

    def __enter__(self) -> Postgres:
        self.folder = Path(tempfile.mkdtemp(prefix="meshnet-postgres-", dir="/tmp"))
        self._as_user = _AS_USER if os.geteuid() == 0 else []
        if self._as_user:
            shutil.chown(self.folder, USER, USER)
        self._run("initdb", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--no-sync", f"{self.folder}/data")
        self.start()
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "meshnet")
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        arguments = [program("postgres"), "-D", f"{self.folder}/data", "-p", str(self.port), *settings]
        self.process = Process([*self._as_user, *arguments], environment(), cwd=self.folder)
        self.process.wait_for("database system is ready to accept connections", 30)

    def stop(self) -> None:
        """What is under way is given up ("fast shutdown"): clients may still be connected."""
        if self.process and self.process.is_running:
            os.kill(self._server_pid(), signal.SIGINT)
            self.process.wait(20)

    def _server_pid(self) -> int:
        """Not runuser's, which stands before it."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def _run(self, name: str, *arguments: str) -> None:
        run = subprocess.run(
            [*self._as_user, program(name), *arguments],
            env=environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert run.returncode == 0, f"{name}: {run.stdout}\n{run.stderr}"


def program(name: str) -> str:
    """Debian keeps the server's programs beside each version, not on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else shutil.which(name) or name
