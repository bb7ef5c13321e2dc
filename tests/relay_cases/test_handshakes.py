"""R12. Relays that take a connection and then don't do what they should: each attempt of a node ends by its deadline.

The connection alone, answer by answer: tests/nodes/test_connection.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from nodes.deadline import Deadline
from nodes.hops import Dialler, HopError
from relay.wire import SUBPROTOCOL
from tests.lab.ends import eventually
from tests.lab.faultproxy import DOWN, FaultProxy
from tests.nodes.meshes import shared_tls
from tests.nodes.websockets import BINARY, TEXT, Ended, ServerSocket, WebSocketServer
from tests.relay.credentials import credential
from tests.relay_cases.meshes import bridges, peer_id_of
from tests.relay_cases.served import Served

DEADLINE_S, BACKOFF_S = 0.6, 0.2  # of an attempt, in place of the ten seconds a node gives it
LATE_S = 1.0  # how late a busy machine may notice
Fault = Callable[[FaultProxy, str], AbstractContextManager[None]]


@pytest.fixture
def proxy(served: Served) -> Iterator[FaultProxy]:
    with FaultProxy(served.address) as proxy:
        yield proxy


@contextmanager
def nobody_answers(proxy: FaultProxy, prefix: str) -> Iterator[None]:
    proxy.fail(prefix, "blackhole")
    yield
    proxy.heal(prefix)


@contextmanager
def a_byte_a_second(proxy: FaultProxy, prefix: str) -> Iterator[None]:
    proxy.throttle(prefix, 1, DOWN)
    yield
    proxy.heal(prefix)


@contextmanager
def http_500(proxy: FaultProxy, prefix: str) -> Iterator[None]:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server, in_place_of_the_relay(proxy, server.server_port):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


class Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(500)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Not on the tests' output."""


@contextmanager
def silence_after_the_upgrade(proxy: FaultProxy, prefix: str) -> Iterator[None]:
    def listen(connection: ServerSocket) -> None:
        with suppress(Ended):
            while True:
                connection.receive_data(TEXT if prefix == "/rpc" else BINARY)

    with WebSocketServer(listen, picks=[SUBPROTOCOL]) as server, in_place_of_the_relay(proxy, server.port):
        yield


@contextmanager
def in_place_of_the_relay(proxy: FaultProxy, port: int) -> Iterator[None]:
    relay, proxy.upstream_address = proxy.upstream_address, ("127.0.0.1", port)
    yield
    proxy.upstream_address = relay


every_fault = pytest.mark.parametrize(
    "fault",
    [nobody_answers, a_byte_a_second, http_500, silence_after_the_upgrade],
    ids=lambda fault: fault.__name__,
)


@every_fault
def test_a_nodes_attempt_to_connect_ends_by_its_deadline_and_it_connects_once_it_can(
    proxy: FaultProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R12."""
    monkeypatch.setattr("nodes.bridge.CONNECT_DEADLINE_S", DEADLINE_S)
    with ExitStack() as stack, ExitStack() as broken:
        broken.enter_context(fault(proxy, "/ws"))
        started = time.monotonic()
        [bridge] = stack.enter_context(bridges(f"ws://127.0.0.1:{proxy.port}", backoff_s=BACKOFF_S))
        eventually(lambda: len(proxy.opened) >= 3)
        assert time.monotonic() - started < 2 * (DEADLINE_S + BACKOFF_S) + LATE_S
        assert not bridge.connected.is_set()
        broken.close()
        assert bridge.connected.wait(DEADLINE_S + BACKOFF_S + LATE_S)


@every_fault
def test_a_hops_attempt_ends_by_its_deadline_and_the_next_one_may_succeed(proxy: FaultProxy, fault: Fault) -> None:
    """R12."""
    ws_url, asker = f"ws://127.0.0.1:{proxy.port}", peer_id_of(2)
    with bridges(ws_url) as [bridge]:
        assert bridge.connected.wait(5)
        hop = Dialler(ws_url, credential(asker), shared_tls()).relay_hop(f"{ws_url}/rpc/{peer_id_of(1)}")
        with fault(proxy, "/rpc"):
            started = time.monotonic()
            with pytest.raises(HopError):
                hop.ask("GET", "/health", {}, b"", Deadline.after(DEADLINE_S))
            assert time.monotonic() - started < DEADLINE_S + LATE_S
        assert hop.ask("GET", "/health", {}, b"", Deadline.after(5)).status == 200
        hop.close()
