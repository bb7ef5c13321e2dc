"""A deployment from the files of docs/deploy.md: nginx, PostgreSQL, Redis and two `serve` processes.

`on_uvicorn` adds a third process for clients, on the other server that the page names, with an nginx before it as well.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import requests

from tests.lab.postgres import Postgres
from tests.lab.processes import ROOT, Process, environment, free_port, manage_py
from tests.lab.redis import Redis
from tests.lab.site import Site
from tests.lab.terminator import PREFACE, make_certificates

FILES = ROOT / "docs" / "deploy"
NAMES_IN_FILES = {"web": 8000, "relay-one": 8001, "relay-two": 8002}  # and their ports
# nginx.conf around it asks for more zipping than Debian's does: streams too, which must come bit by bit all the same.
_AROUND = PREFACE + "  gzip on; gzip_types *;\n  include {folder}/meshnet.conf;\n}}\n"


class Deployment(Site):
    """`web` is the site's process; `relay-one` holds the nodes' sockets; `relay-two` is named and not there."""

    def __init__(self, folder: Path, postgres: Postgres, redis: Redis) -> None:
        self.https_port = free_port()
        self.relay_port, self.http_port = free_port(), free_port()
        settings = shipped_settings(
            {
                "mesh.example.org": f"127.0.0.1:{self.https_port}",
                f",wss://127.0.0.1:{self.https_port}/relay-two": "",
                "postgresql://meshnet:PASSWORD@127.0.0.1:5432/meshnet": postgres.url,
                "redis://127.0.0.1:6379/0": redis.url,
                "/var/lib/meshnet": str(folder / "site"),
            }
        )
        public_url, _ = settings.pop("PUBLIC_URL"), settings.pop("DATA_DIR")
        super().__init__(folder, public_url=public_url, **settings)
        self.ca_file = folder / "ca.pem"
        self.relay: Process | None = None
        self._others: list[Process] = []

    def start(self) -> None:
        make_certificates(self.folder)
        self.process = self._serve(self.port)
        self.start_relay()
        self.process.wait_for("Listening on")
        self._start_nginx(self.folder, self.port, self.https_port, self.http_port)

    def on_uvicorn(self) -> tuple[str, str]:
        """Starts it; where it is asked directly, and where past nginx."""
        port, https_port, folder = free_port(), free_port(), self.folder / "uvicorn"
        folder.mkdir()
        command = [self.python, "-m", *command_in(ROOT / "docs" / "deploy.md", "uvicorn ", PORT=str(port))]
        server = Process(command, self.env | {"PUBLIC_URL": f"https://127.0.0.1:{https_port}"})
        self._others.append(server)
        server.wait_for("Uvicorn running on")
        self._start_nginx(folder, port, https_port, free_port())
        return f"http://127.0.0.1:{port}", f"https://127.0.0.1:{https_port}"

    def start_relay(self) -> None:
        self.relay = self._serve(self.relay_port, RELAY_URL=f"wss://127.0.0.1:{self.https_port}/relay-one")
        self.relay.wait_for("Listening on")

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for process in (*self._others, self.relay):
            if process and process.is_running:
                process.stop()

    def over_tls(self, method: str, path: str, **options: Any) -> requests.Response:
        return requests.request(method, self.url + path, verify=str(self.ca_file), timeout=60, **options)

    def _serve(self, port: int, **env: str) -> Process:
        """With the arguments that systemd gives it."""
        arguments = command_in(FILES / "meshnet@.service", "ExecStart=", PORT=str(port))
        return Process([*manage_py(self.python), *arguments[2:]], self.env | env)

    def _start_nginx(self, folder: Path, web_port: int, https_port: int, http_port: int) -> None:
        ports = {"web": web_port, "relay-one": self.relay_port, "relay-two": free_port()}
        changes = {f"127.0.0.1:{NAMES_IN_FILES[name]}": f"127.0.0.1:{port}" for name, port in ports.items()} | {
            "listen 443 ssl": f"listen 127.0.0.1:{https_port} ssl",
            "listen 80": f"listen 127.0.0.1:{http_port}",
            "/etc/letsencrypt/live/mesh.example.org/fullchain.pem": f"{self.folder}/server.pem",
            "/etc/letsencrypt/live/mesh.example.org/privkey.pem": f"{self.folder}/server.key",
        }
        (folder / "meshnet.conf").write_text(changed((FILES / "nginx.conf").read_text(), changes))
        (folder / "nginx.conf").write_text(_AROUND.format(folder=folder))
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        arguments = [program, "-c", f"{folder}/nginx.conf", "-p", str(folder)]
        self._others.append(Process(arguments, environment()))


def command_in(file: Path, start: str, **variables: str) -> list[str]:
    """The words of the one line that begins so, with what comes after an ="""
    (line,) = [line.strip() for line in file.read_text().splitlines() if line.strip().startswith(start)]
    for name, value in variables.items():
        line = line.replace(f"${{{name}}}", value)
    return shlex.split(line.removeprefix(start) if start.endswith("=") else line)


def shipped_settings(changes: dict[str, str]) -> dict[str, str]:
    lines = changed((FILES / "meshnet.env").read_text(), changes).splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def changed(text: str, changes: dict[str, str]) -> str:
    """Each must be there: a file that has moved on is no longer what is tested."""
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new)
    return text
