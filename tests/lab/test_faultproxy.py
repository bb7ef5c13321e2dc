from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import requests
import websocket

from tests.lab.faultproxy import DOWN, UP, FaultProxy
from tests.nodes.websockets import ServerSocket, WebSocketServer


@dataclass
class Echo:
    proxy: FaultProxy
    received: list[str] = field(default_factory=list)

    def connect(self, path: str = "/ws") -> websocket.WebSocket:
        return websocket.create_connection(f"ws://127.0.0.1:{self.proxy.port}{path}", timeout=5)


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A WebSocket server that sends back what it gets, behind the proxy."""

    def serve(connection: ServerSocket) -> None:
        while True:
            text = connection.receive()
            made.received.append(text)
            connection.send(text)

    with WebSocketServer(serve) as server:
        host, port = server.url.removeprefix("ws://").split(":")
        with FaultProxy((host, int(port))) as proxy:
            made = Echo(proxy)
            yield made


@contextlib.contextmanager
def http_server() -> Iterator[tuple[int, list[bytes]]]:
    """Answers each request on a connection with its body; gives the port and the bodies."""
    listener = socket.create_server(("127.0.0.1", 0))
    bodies: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock, sock.makefile("rb") as file:
            while file.readline():
                length = 0
                while (line := file.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                bodies.append(file.read(length))
                sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (length, bodies[-1]))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1], bodies
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def seconds(ws: websocket.WebSocket, text: str) -> float:
    started = time.monotonic()
    ws.send(text)
    assert ws.recv() == text
    return time.monotonic() - started


def hears_nothing(ws: websocket.WebSocket, for_s: float = 0.2) -> bool:
    ws.settimeout(for_s)
    with pytest.raises(websocket.WebSocketTimeoutException):
        ws.recv()
    ws.settimeout(5)
    return True


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_without_faults_everything_passes(echo: Echo) -> None:
    ws = echo.connect()
    for size in (1, 1000, 1_000_000):
        seconds(ws, "x" * size)
    ws.close()
    assert echo.proxy.opened == ["/ws"]


def test_a_refused_prefix_is_closed_and_others_pass(echo: Echo) -> None:
    echo.proxy.fail("/rpc", "refuse")
    with pytest.raises((OSError, websocket.WebSocketException)):
        echo.connect("/rpc/aa")
    seconds(echo.connect("/ws"), "hello")
    echo.proxy.heal("/rpc")
    seconds(echo.connect("/rpc/aa"), "hello")


def test_cut_resets_what_is_open_under_the_prefix(echo: Echo) -> None:
    kept, lost = echo.connect("/ws"), [echo.connect(f"/rpc/{number}") for number in range(3)]
    assert echo.proxy.num_open("/rpc") == 3
    assert echo.proxy.cut("/rpc") == 3
    for ws in lost:
        with pytest.raises(ConnectionResetError):
            ws.recv()
    seconds(kept, "hello")


def test_a_pause_delivers_everything_when_it_is_over(echo: Echo) -> None:
    ws = echo.connect()
    echo.proxy.fail("/ws", "pause")
    for number in range(5):
        ws.send(str(number))
    assert hears_nothing(ws)
    echo.proxy.heal("/ws")
    assert [ws.recv() for _ in range(5)] == ["0", "1", "2", "3", "4"]


def test_a_pause_of_one_direction_leaves_the_other(echo: Echo) -> None:
    ws = echo.connect()
    echo.proxy.fail("/ws", "pause", DOWN)
    ws.send("there")
    assert hears_nothing(ws)
    assert echo.received == ["there"]
    echo.proxy.heal("/ws")
    assert ws.recv() == "there"


def test_a_paused_sender_feels_that_nobody_reads(echo: Echo) -> None:
    ws = echo.connect()
    echo.proxy.fail("/ws", "pause", UP)
    ws.settimeout(0.5)
    with pytest.raises(websocket.WebSocketTimeoutException):
        ws.send("x" * 100_000_000)


def test_in_a_black_hole_nobody_hears_that_the_other_has_gone(echo: Echo) -> None:
    ws = echo.connect()
    seconds(ws, "before")
    echo.proxy.fail("/ws", "blackhole")
    ws.send("lost")
    assert hears_nothing(ws)
    echo.proxy.heal("/ws")
    ws.send("after")
    assert hears_nothing(ws), "a connection that lost bytes stays dead"
    assert echo.received == ["before"]
    ws.shutdown()  # type: ignore[no-untyped-call]
    time.sleep(0.1)
    assert echo.proxy.num_open("/ws") == 1, "the server has not been told"
    assert echo.proxy.cut("/ws") == 1


def test_a_new_connection_into_a_black_hole_is_never_answered(echo: Echo) -> None:
    echo.proxy.fail("/ws", "blackhole")
    with pytest.raises(websocket.WebSocketTimeoutException):
        websocket.create_connection(f"ws://127.0.0.1:{echo.proxy.port}/ws", timeout=0.3)


def test_a_delay_counts_for_each_way_and_not_for_each_message(echo: Echo) -> None:
    ws = echo.connect()
    assert seconds(ws, "quick") < 0.1
    echo.proxy.delay("/ws", 100)
    assert 0.2 <= seconds(ws, "slow") < 0.5
    echo.proxy.heal("/ws")
    echo.proxy.delay("/ws", 100, UP)
    started = time.monotonic()
    for number in range(20):
        ws.send(str(number))
    assert [ws.recv() for _ in range(20)] == [str(number) for number in range(20)]
    assert 0.1 <= time.monotonic() - started < 0.4


def test_a_throttle_lets_so_many_bytes_through_each_second(echo: Echo) -> None:
    ws = echo.connect()
    echo.proxy.throttle("/ws", 200_000, DOWN)
    assert 0.35 < seconds(ws, "x" * 80_000) < 1.0


def test_a_held_message_is_overtaken_and_delivered_when_it_is_released(echo: Echo) -> None:
    ws = echo.connect()
    held = echo.proxy.hold("/ws", lambda message: message == b"second", UP)
    for text in ("first", "second", "third"):
        ws.send(text)
    assert held.wait() == b"second"
    assert [ws.recv(), ws.recv()] == ["first", "third"]
    assert held.release()
    assert ws.recv() == "second"
    ws.send("second")
    assert ws.recv() == "second", "only one is held"


def test_a_held_message_may_be_one_the_server_sends(echo: Echo) -> None:
    ws = echo.connect()
    held = echo.proxy.hold("/ws", lambda message: message.startswith(b"a"), DOWN)
    ws.send("a" * 70_000)
    ws.send("b")
    assert ws.recv() == "b"
    held.wait()
    assert held.release()
    assert ws.recv() == "a" * 70_000


def test_a_held_message_whose_connection_has_ended_cannot_be_delivered(echo: Echo) -> None:
    ws = echo.connect()
    held = echo.proxy.hold("/ws", lambda message: True)
    ws.send("hello")
    held.wait()
    echo.proxy.cut("/ws")
    time.sleep(0.05)
    assert not held.release()


def test_a_held_request_arrives_late_although_its_sender_has_gone() -> None:
    with http_server() as (port, bodies), FaultProxy(("127.0.0.1", port)) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/forward"
        held = proxy.hold("/forward", lambda message: message.endswith(b"late"))
        with pytest.raises(requests.ReadTimeout):
            requests.post(url, b"late", timeout=0.2)
        assert b"POST /forward" in held.wait()
        assert requests.post(url, b"prompt", timeout=5).content == b"prompt"
        assert held.release()
        eventually(lambda: bodies == [b"prompt", b"late"])


def test_the_upstream_may_move(echo: Echo) -> None:
    with http_server() as (port, _):
        echo.proxy.upstream_address = ("127.0.0.1", port)
        assert requests.post(f"http://127.0.0.1:{echo.proxy.port}/forward", b"x", timeout=5).content == b"x"


def test_an_upstream_that_is_not_there_ends_the_connection() -> None:
    with FaultProxy(("127.0.0.1", 1)) as proxy, pytest.raises(requests.ConnectionError):
        requests.get(f"http://127.0.0.1:{proxy.port}/", timeout=5)


def test_connections_of_one_path_are_told_apart_by_a_name_in_their_heads() -> None:
    def whose(head: bytes) -> str:
        return "ann" if b"Authorization: Bearer a1." in head else ""

    with http_server() as (port, bodies), FaultProxy(("127.0.0.1", port), whose) as proxy:
        proxy.fail("ann /ws", "refuse")
        url, ann = f"http://127.0.0.1:{proxy.port}", {"Authorization": "Bearer a1.secret"}
        assert requests.post(f"{url}/ws", b"others go through", timeout=5).status_code == 200
        assert requests.post(f"{url}/api", b"and so do other paths", headers=ann, timeout=5).status_code == 200
        with pytest.raises(requests.ConnectionError):
            requests.post(f"{url}/ws", b"hers don't", headers=ann, timeout=5)
    assert bodies == [b"others go through", b"and so do other paths"]
    assert proxy.opened == ["/ws", "ann /api", "ann /ws"]
