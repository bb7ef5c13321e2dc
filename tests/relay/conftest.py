"""A served relay for the tests that want a real one: `manage.py serve` in a process of its own.

With RELAY_TEST_SERVER=uvicorn it is uvicorn: what isn't about `manage.py serve` itself passes there too.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import websocket

from tests.lab.processes import Process, environment, manage_py
from tests.lab.websockets import connect
from tests.relay.credentials import credential

ON_UVICORN = os.environ.get("RELAY_TEST_SERVER") == "uvicorn"
SERVER = [sys.executable, "-m", "tests.relay.on_uvicorn"] if ON_UVICORN else [*manage_py(), "serve", "--port", "0"]


class Relay:
    """One serve process, and sockets to it that end with the test."""

    def __init__(self, *options: str, **env: str) -> None:
        self.env = {"DJANGO_SETTINGS_MODULE": "tests.relay.settings", **env}
        self.process = Process([*SERVER, *options], environment(**self.env))
        port = self.process.wait_for(r"Listening on http://127\.0\.0\.1:(\d+)")[1]
        self.url, self.http_url = f"ws://127.0.0.1:{port}", f"http://127.0.0.1:{port}"
        self.credential = credential
        self._sockets = contextlib.ExitStack()

    def connect(self, path: str, bearer: str | None, **options: Any) -> websocket.WebSocket:
        headers = [f"Authorization: Bearer {bearer}"] if bearer is not None else []
        given: Any = {"timeout": 10, "skip_utf8_validation": True, "header": headers, **options}
        ws = connect(self.url + path, **given)
        self._sockets.callback(cut, ws)
        return ws

    def register(self, peer_id: str, **options: Any) -> websocket.WebSocket:
        ws = self.connect("/ws", credential(peer_id), **options)
        ws.send(json.dumps({"type": "register", "peer_id": peer_id}))
        assert json.loads(ws.recv())["type"] == "registered"
        return ws

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.http_url + path, timeout=10, **options)

    @contextlib.contextmanager
    def get_in_thread(self, path: str) -> Iterator[Callable[[], str]]:
        """The answer's text is there when the block has ended."""
        texts: list[str] = []
        thread = threading.Thread(target=lambda: texts.append(self.get(path).text), daemon=True)
        thread.start()
        yield lambda: texts[0]
        thread.join(10)

    def close_sockets(self) -> None:
        self._sockets.close()


def cut(ws: websocket.WebSocket) -> None:
    """Also where a thread reads: a socket that is only closed lives on until that thread has read something."""
    with contextlib.suppress(OSError):
        if ws.sock:
            ws.sock.shutdown(socket.SHUT_RDWR)
    close: Callable[[], None] = ws.shutdown
    close()


@pytest.fixture(scope="session")
def shared_relay() -> Iterator[Relay]:
    relay = Relay()
    yield relay
    relay.close_sockets()
    assert relay.process.stop() == 0
    output = relay.process.output
    assert output.count("Traceback") == output.count("RuntimeError: the database is away"), output


@pytest.fixture
def relay(shared_relay: Relay) -> Iterator[Relay]:
    """The shared process; what a test opens there is closed after it."""
    yield shared_relay
    shared_relay.close_sockets()


@pytest.fixture
def own_relay() -> Iterator[Relay]:
    """A process that the test may stop."""
    if ON_UVICORN:
        pytest.skip("uvicorn stops in its own way")
    relay = Relay("--grace", "5")
    yield relay
    relay.close_sockets()
    if relay.process.is_running:
        relay.process.kill()
