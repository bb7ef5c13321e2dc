from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodes.connection import Connection, ConnectionFailed, origin_of
from nodes.deadline import Deadline
from nodes.framing import Outgoing
from relay import wire
from tests.nodes.certificates import tls_pair
from tests.nodes.meshes import shared_tls
from tests.nodes.test_sockets import listening
from tests.nodes.websockets import PING, ServerSocket, WebSocketServer


@contextlib.contextmanager
def connected(handler: Callable[[ServerSocket], None]) -> Iterator[tuple[Connection, WebSocketServer]]:
    with WebSocketServer(handler) as server:
        connection = Connection(f"{server.url}/ws", "id.secret", shared_tls())
        connection.open(Deadline.after(5))
        yield connection, server
        connection.close()


def echo(connection: ServerSocket) -> None:
    while True:
        connection.send(connection.receive())


def test_it_carries_messages_both_ways_and_shows_its_credential() -> None:
    with connected(echo) as (connection, server):
        for text in ("a", "ä" * 100, "x" * 100_000, "y" * 1_300_000):
            connection.send(text, Deadline.after(5))
            assert connection.receive(Deadline.after(5)) == text
        assert server.sockets[0].headers["authorization"] == "Bearer id.secret"
        assert "origin" not in server.sockets[0].headers


def test_a_ping_is_answered_and_is_no_message() -> None:
    def serve(connection: ServerSocket) -> None:
        connection.frame(PING, b"are you there")
        connection.send("hello")
        with contextlib.suppress(Exception):
            connection.receive()

    with connected(serve) as (connection, server):
        assert connection.receive(Deadline.after(5)) is None
        assert connection.receive(Deadline.after(5)) == "hello"
        connection.send("", Deadline.after(5))
    assert server.sockets[0].pongs == [b"are you there"]


def test_a_message_may_come_in_several_frames_with_a_pause_between() -> None:
    go = threading.Event()

    def serve(connection: ServerSocket) -> None:
        connection.frame(1, b"hel", is_last=False)
        assert go.wait(5)
        connection.frame(0, b"lo")
        connection.receive()

    with connected(serve) as (connection, _):
        assert connection.receive(Deadline.after(5)) is None
        with pytest.raises(TimeoutError):
            connection.receive(Deadline.after(0.05))
        go.set()
        assert connection.receive(Deadline.after(5)) == "hello"


def test_an_endless_message_ends_the_connection() -> None:
    def serve(connection: ServerSocket) -> None:
        while True:
            connection.frame(1 if not connection.pongs else 0, bytes(wire.MAX_BODY_BYTES), is_last=False)
            connection.pongs.append(b"sent one")

    with connected(serve) as (connection, _), pytest.raises(ConnectionFailed, match="more than"):
        receive_for_ever(connection)


def test_a_close_frame_gives_its_code() -> None:
    with connected(lambda connection: connection.close(4409)) as (connection, _):
        with pytest.raises(ConnectionFailed) as failed:
            connection.receive(Deadline.after(5))
    assert failed.value.status == 4409


def test_the_end_without_a_close_frame_is_an_error_too() -> None:
    with connected(lambda connection: connection.cut()) as (connection, _):
        with pytest.raises(ConnectionFailed):
            connection.receive(Deadline.after(5))


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n", "HTTP 500"),
        (b"HTTP/1.1 302 Found\r\nlocation: ws://127.0.0.1:1/\r\n\r\n", "edirect"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "HTTP 200"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "can't connect"),
    ],
)
def test_what_is_no_websocket_is_refused_with_its_cause(answer: bytes, cause: str) -> None:
    def serve(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(answer)
        with contextlib.suppress(OSError):
            sock.recv(65536)

    with listening(serve) as port:
        with pytest.raises(ConnectionFailed, match=cause):
            Connection(f"ws://127.0.0.1:{port}/ws", "key", shared_tls()).open(Deadline.after(5))


@pytest.mark.parametrize("pieces", [b"", b"HTTP/1.1 101 Switching Protocols\r\n" + b"x: y\r\n" * 1000])
def test_an_upgrade_that_isnt_answered_or_trickles_ends_by_its_deadline(pieces: bytes) -> None:
    def serve(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for number in range(len(pieces)):
                sock.sendall(pieces[number : number + 1])
                time.sleep(0.01)
            while sock.recv(65536):
                pass

    with listening(serve) as port:
        started = time.monotonic()
        with pytest.raises(ConnectionFailed):
            Connection(f"ws://127.0.0.1:{port}/ws", "key", shared_tls()).open(Deadline.after(0.4))
        assert time.monotonic() - started < 2


def test_a_refused_connection_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionFailed, match="refused"):
        Connection(f"ws://127.0.0.1:{port}/ws", "key", shared_tls()).open(Deadline.after(5))


def test_over_tls_one_thread_sends_while_another_receives(tmp_path: Path) -> None:
    server_tls, client_tls = tls_pair(tmp_path)
    messages = [f"{number}:" + "x" * (number * 997 % 40_000) for number in range(400)]

    def serve(connection: ServerSocket) -> None:
        # A second thread sends, so that both directions are full at once; the server's TLS socket isn't ours,
        # so what it received is checked here and what it sends comes from the list.
        for text in messages:
            connection.send(text)
            assert connection.receive() == text
        connection.send("all there")
        connection.receive()

    with WebSocketServer(serve, server_tls) as server:
        connection = Connection(f"{server.url}/ws", "key", client_tls)
        connection.open(Deadline.after(5))
        sender = threading.Thread(target=send_each, args=(connection, messages), daemon=True)
        sender.start()
        received = [connection.receive(Deadline.after(30)) for _ in range(len(messages) + 1)]
        sender.join(5)
        connection.close()

    assert received == [*messages, "all there"]


def receive_for_ever(connection: Connection) -> None:
    while True:
        connection.receive(Deadline.after(5))


def send_each(connection: Connection, messages: list[str]) -> None:
    for text in messages:
        connection.send(text, Deadline.after(30))


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("ws://Relay.example/ws", ("ws", "relay.example", 80)),
        ("wss://relay.example/rpc/ab", ("wss", "relay.example", 443)),
        ("wss://relay.example:8443", ("wss", "relay.example", 8443)),
    ],
)
def test_an_origin_has_scheme_host_and_port(url: str, origin: tuple[str, str, int]) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize("url", ["http://relay.example", "ws://", "relay.example", "ws://host:port/"])
def test_what_is_no_relay_address_has_no_origin(url: str) -> None:
    with pytest.raises(ValueError):
        origin_of(url)


@pytest.mark.parametrize(("picks", "picked"), [([wire.SUBPROTOCOL], wire.SUBPROTOCOL), ([], "")])
def test_what_the_relay_picks_of_the_offer_is_known_and_none_is_no_failure(picks: list[str], picked: str) -> None:
    def serve(connection: ServerSocket) -> None:
        connection.send(connection.receive_data())
        connection.receive_data()

    with WebSocketServer(serve, picks=picks) as server:
        connection = Connection(f"{server.url}/ws", "key", shared_tls(), [wire.SUBPROTOCOL])
        connection.open(Deadline.after(5))
        assert connection.subprotocol == picked
        connection.send(bytes(range(256)), Deadline.after(5))
        assert connection.receive(Deadline.after(5)) == bytes(range(256))
        connection.close()
    assert server.sockets[0].headers["sec-websocket-protocol"] == wire.SUBPROTOCOL


def test_without_an_offer_no_subprotocol_is_named() -> None:
    with connected(echo) as (connection, server):
        assert connection.subprotocol == ""
        connection.send("x", Deadline.after(5))
        assert connection.receive(Deadline.after(5)) == "x"
        assert "sec-websocket-protocol" not in server.sockets[0].headers


@pytest.mark.parametrize("with_tls", [False, True])
def test_what_cant_be_sent_without_waiting_is_left_and_can_be_sent_later(with_tls: bool, tmp_path: Path) -> None:
    messages = [bytes([number]) * 60_000 for number in range(200)]
    may_read = threading.Event()
    received: list[bytes] = []

    def serve(connection: ServerSocket) -> None:
        assert may_read.wait(10)
        received.extend(connection.receive_data() for _ in messages)
        connection.send("all there")
        connection.receive()

    server_tls, client_tls = tls_pair(tmp_path) if with_tls else (None, shared_tls())
    with WebSocketServer(serve, server_tls) as server:
        connection = Connection(f"{server.url}/ws", "key", client_tls)
        connection.open(Deadline.after(5))
        num_left = 0
        for message in messages:
            num_bytes, rest = connection.send_now(Outgoing.of(message))
            assert num_bytes > len(message)
            if rest:
                num_left += 1
                may_read.set()
                connection.send_rest(rest, Deadline.after(10))
        assert num_left, "twelve megabytes went at once"
        assert connection.receive(Deadline.after(10)) == "all there"
        connection.close()
    assert received == messages
