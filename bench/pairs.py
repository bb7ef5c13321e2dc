"""Two nodes for each third of a model, of which one can be killed: the other goes on, and the first comes back."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from pathlib import Path
from typing import Any

from tests.lab.processes import Process
from tests.lab.site import Site

PLACES = {"tail": "4:6", "middle": "2:4", "head": "0:2"}
READY_S = 180.0  # a machine may have much else to do


class Pairs:
    def __init__(self, site: Site, model: Path) -> None:
        self._site, self._model = site, model
        self._nodes: dict[str, Process] = {}
        self._kept_mb = 0

    def start(self, kept_mb: int) -> None:
        """Heads that keep so much of activations, and whatever doesn't run yet."""
        self._kept_mb = kept_mb
        for place in PLACES:
            for number in (1, 2):
                self._start(f"{place}-{number}")
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        for node in self._nodes.values():
            node.wait_for("Ready: layers", READY_S)
        self._site.wait_for_model(self._model.name)

    def on_route(self, place: str) -> str:
        """The node in this place of the chat that runs now."""
        order = list(reversed(PLACES)).index(place)
        [name, *_] = self.rows(
            "SELECT node_name FROM tracker_sessionhop WHERE position = ? ORDER BY session_id DESC, epoch DESC", order
        )
        return str(name[0])

    def kill(self, name: str) -> None:
        self._nodes[name].send(signal.SIGKILL)

    def restart(self, name: str) -> None:
        self._start(name)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        file = self._site.folder / "site" / "meshnet.sqlite3"
        with contextlib.closing(sqlite3.connect(file, timeout=20)) as database:
            return database.execute(query, values).fetchall()

    def _start(self, name: str) -> None:
        """Anew, where it keeps something else now or has been killed."""
        place = name.partition("-")[0]
        node = self._nodes.get(name)
        if node and node.is_running and place != "head":
            return
        if node:
            node.stop()
            self._site.nodes.remove(node)
        options = ("--relay-only", "--dtype", "float32", "--drafts", "off", "--keep-activations", str(self._kept_mb))
        self._nodes[name] = self._site.start_node(name, self._model, PLACES[place], *options)
