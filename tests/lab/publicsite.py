"""A site on the public segment of a small internet: nodes reach it from behind their routers, tests as its neighbours.

At http://198.51.100.1, or with TLS at https://198.51.100.1, as a deployment has it. What asks it is in the same
namespace for as long as it takes to connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import requests

from tests.lab.internet import PUBLIC_ADDRESS, Internet
from tests.lab.processes import Process, manage_py
from tests.lab.site import Site
from tests.lab.terminator import Terminator

INNER_PORT = 8000  # of `serve`, where nginx has the public one


class PublicSite(Site):
    def __init__(self, folder: Path, internet: Internet, *, tls: bool = False, **settings: str) -> None:
        scheme = "https" if tls else "http"
        super().__init__(folder, public_url=f"{scheme}://{PUBLIC_ADDRESS}", **settings)
        self.internet, self.port = internet, INNER_PORT if tls else 80
        self.local_url = f"http://127.0.0.1:{self.port}"
        self._ends = ExitStack()
        self._terminator = Terminator(folder / "tls", self.port, 443, PUBLIC_ADDRESS, internet.public) if tls else None

    def start(self) -> None:
        host = "127.0.0.1" if self._terminator else "0.0.0.0"
        serve = ["serve", "--host", host, "--port", str(self.port)]
        self.process = Process([*manage_py(self.python), *serve], self.env, namespace=self.internet.public)
        self.process.wait_for(r"Listening on")
        if self._terminator:
            self._ends.enter_context(self._terminator)

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._ends.close()

    @property
    def trust(self) -> tuple[str, ...]:
        """What a node is told of the certificate."""
        return ("--ca-file", str(self._terminator.ca_file)) if self._terminator else ()

    def get(self, path: str) -> requests.Response:
        with self.internet.public.entered():
            return super().get(path)

    def post(self, path: str, body: Mapping[str, Any], *, stream: bool = False) -> requests.Response:
        with self.internet.public.entered():
            return super().post(path, body, stream=stream)

    def health(self, name: str, asker: str) -> dict[str, Any]:
        with self.internet.public.entered():
            return super().health(name, asker)
