"""A site on the public segment of a small internet: nodes reach it from behind their routers, tests as its neighbours.

It is at https://198.51.100.1, with nginx in front, as a deployment has it. Tests ask the process behind nginx, and are
in the same namespace for as long as it takes to connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import requests

from tests.lab.internet import PUBLIC_ADDRESS, Internet
from tests.lab.processes import Process, manage_py
from tests.lab.site import Site
from tests.lab.terminator import Terminator


class PublicSite(Site):
    def __init__(self, folder: Path, internet: Internet, **settings: str) -> None:
        super().__init__(folder, public_url=f"https://{PUBLIC_ADDRESS}", TRUSTED_PROXIES="127.0.0.1", **settings)
        self._public = internet.public
        self._terminator = Terminator(folder / "tls", self.port, 443, PUBLIC_ADDRESS, internet.public)
        self.ca_file = self._terminator.ca_file

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            ends.enter_context(self._terminator)
            super().__enter__()
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._ends:
            super().__exit__(*exc)

    def start(self) -> None:
        serve = ["serve", "--port", str(self.port)]
        self.process = Process([*manage_py(self.python), *serve], self.env, namespace=self._public)
        self.process.wait_for(r"Listening on")

    def get(self, path: str) -> requests.Response:
        with self._public.entered():
            return super().get(path)

    def post(self, path: str, body: Mapping[str, Any], *, stream: bool = False) -> requests.Response:
        with self._public.entered():
            return super().post(path, body, stream=stream)

    def health(self, name: str, asker: str) -> dict[str, Any]:
        with self._public.entered():
            return super().health(name, asker)
