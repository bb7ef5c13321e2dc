"""A deployment from the files of docs/deploy.md: nginx, PostgreSQL, Redis and two `serve` processes."""

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
_AROUND = PREFACE + "  include {folder}/meshnet.conf;\n}}\n"


class Deployment(Site):
    """`web` is the site's process; `relay-one` holds the nodes' sockets; `relay-two` is named and not there."""

    def __init__(self, folder: Path, postgres: Postgres, redis: Redis) -> None:
        self.https_port = free_port()
        self.relay_port = free_port()
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
        self.nginx: Process | None = None

    def start(self) -> None:
        make_certificates(self.folder)
        self.process = self._serve(self.port)
        self.start_relay()
        self.process.wait_for("Listening on")
        self._start_nginx()

    def start_relay(self) -> None:
        self.relay = self._serve(self.relay_port, RELAY_URL=f"wss://127.0.0.1:{self.https_port}/relay-one")
        self.relay.wait_for("Listening on")

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for process in (self.relay, self.nginx):
            if process and process.is_running:
                process.stop()

    def over_tls(self, method: str, path: str, **options: Any) -> requests.Response:
        return requests.request(method, self.url + path, verify=str(self.ca_file), timeout=60, **options)

    def _serve(self, port: int, **env: str) -> Process:
        """With the arguments that systemd gives it."""
        unit = (FILES / "meshnet@.service").read_text()
        (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
        arguments = shlex.split(line.split("manage.py", 1)[1].replace("${PORT}", str(port)))
        return Process([*manage_py(self.python), *arguments], self.env | env)

    def _start_nginx(self) -> None:
        ports = {"web": self.port, "relay-one": self.relay_port, "relay-two": free_port()}
        changes = {f"127.0.0.1:{NAMES_IN_FILES[name]}": f"127.0.0.1:{port}" for name, port in ports.items()} | {
            "listen 443 ssl": f"listen 127.0.0.1:{self.https_port} ssl",
            "/etc/letsencrypt/live/mesh.example.org/fullchain.pem": f"{self.folder}/server.pem",
            "/etc/letsencrypt/live/mesh.example.org/privkey.pem": f"{self.folder}/server.key",
        }
        (self.folder / "meshnet.conf").write_text(changed((FILES / "nginx.conf").read_text(), changes))
        (self.folder / "nginx.conf").write_text(_AROUND.format(folder=self.folder))
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        arguments = [program, "-c", f"{self.folder}/nginx.conf", "-p", str(self.folder)]
        self.nginx = Process(arguments, environment())


def shipped_settings(changes: dict[str, str]) -> dict[str, str]:
    lines = changed((FILES / "meshnet.env").read_text(), changes).splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def changed(text: str, changes: dict[str, str]) -> str:
    """Each must be there: a file that has moved on is no longer what is tested."""
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new)
    return text
