from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.deadline import Deadline
from nodes.hops import Dialler, DirectHop, HopError, RelayHop
from relay import envelope, wire
from relay.wire import Response
from tests.nodes.certificates import tls_pair
from tests.nodes.meshes import shared_tls
from tests.nodes.test_sockets import listening
from tests.nodes.websockets import PING, ServerSocket, WebSocketServer

ALL_BYTES = bytes(range(256)) * 5


class Echo:
    """Answers a request on /rpc with its own body and a header."""

    def __init__(self) -> None:
        self.requests: list[wire.Request] = []

    def __call__(self, connection: ServerSocket) -> None:
        while True:
            request = envelope.decode_request(connection.receive())
            self.requests.append(request)
            headers = {"content-type": "application/octet-stream", "x-meshnet-shape": "1,1,1"}
            connection.send(envelope.encode(Response(request.request_id, 200, headers, request.body)))


@contextlib.contextmanager
def relay_hop(handler: object, tls_folder: Path | None = None) -> Iterator[tuple[RelayHop, WebSocketServer]]:
    server_tls, client_tls = tls_pair(tls_folder) if tls_folder else (None, shared_tls())
    with WebSocketServer(handler, server_tls) as server:  # type: ignore[arg-type]
        hop = RelayHop(f"{server.url}/rpc/abcd", "id.secret", client_tls)
        yield hop, server
        hop.close()


def wait_for_input(hop: RelayHop) -> None:
    """Until the server's next bytes are there, or its end."""
    until = time.monotonic() + 5
    while not hop._connection or not hop._connection.has_input():
        assert time.monotonic() < until


def test_a_relay_hop_carries_every_byte_there_and_back() -> None:
    echo = Echo()
    with relay_hop(echo) as (hop, server):
        answer = hop.ask("POST", "/forward", {"x-a": "1"}, ALL_BYTES, Deadline.after(5))

    assert (answer.status, answer.body, answer.headers["x-meshnet-shape"]) == (200, ALL_BYTES, "1,1,1")
    assert server.sockets[0].path == "/rpc/abcd"
    assert echo.requests[0].headers == {"x-a": "1"}
    assert 0 < (echo.requests[0].deadline_ms or 0) <= 5000


def test_a_relay_hop_works_over_tls(tmp_path: Path) -> None:
    with relay_hop(Echo(), tmp_path) as (hop, _):
        for _ in range(20):
            assert hop.ask("POST", "/forward", {}, ALL_BYTES, Deadline.after(5)).body == ALL_BYTES


def test_a_relay_hop_keeps_its_connection() -> None:
    echo = Echo()
    with relay_hop(echo) as (hop, server):
        for _ in range(3):
            hop.ask("POST", "/forward", {}, b"x", Deadline.after(5))

    assert len(server.sockets) == 1
    assert len({request.request_id for request in echo.requests}) == 3


def test_a_connection_that_ended_between_two_steps_is_opened_anew() -> None:
    def once(connection: ServerSocket) -> None:
        request = envelope.decode_request(connection.receive())
        connection.send(envelope.encode(Response(request.request_id, 200)))
        connection.close()

    with relay_hop(once) as (hop, server):
        for number in range(1, 4):
            assert hop.ask("POST", "/forward", {}, b"x", Deadline.after(5)).status == 200
            wait_for_input(hop)
            assert len(server.sockets) == number


def test_pings_between_two_steps_are_answered() -> None:
    def serve(connection: ServerSocket) -> None:
        for _ in range(2):
            request = envelope.decode_request(connection.receive())
            connection.send(envelope.encode(Response(request.request_id, 200)))
            connection.frame(PING, b"idle")
        with contextlib.suppress(Exception):
            connection.receive()

    with relay_hop(serve) as (hop, server):
        hop.ask("POST", "/forward", {}, b"x", Deadline.after(5))
        wait_for_input(hop)
        hop.ask("POST", "/forward", {}, b"x", Deadline.after(5))
        assert server.sockets[0].pongs == [b"idle"]


def test_an_answer_to_an_earlier_request_is_passed_over() -> None:
    def serve(connection: ServerSocket) -> None:
        request = envelope.decode_request(connection.receive())
        connection.send(envelope.encode(Response("zz", 200, {}, b"late")))
        connection.send(envelope.encode(Response(request.request_id, 200, {}, b"mine")))
        with contextlib.suppress(Exception):
            connection.receive()

    with relay_hop(serve) as (hop, _):
        assert hop.ask("POST", "/forward", {}, b"", Deadline.after(5)).body == b"mine"


def test_an_answer_that_doesnt_come_is_an_error_at_the_deadline_and_ends_the_connection() -> None:
    ended = threading.Event()

    def serve(connection: ServerSocket) -> None:
        connection.receive()
        try:
            connection.receive()
        finally:
            ended.set()

    with relay_hop(serve) as (hop, _):
        with pytest.raises(HopError, match="in time"):
            hop.ask("POST", "/forward", {}, b"", Deadline.after(0.2))
        assert ended.wait(5)  # which is what cancels it at the node


def test_a_cut_is_told_from_other_failures() -> None:
    def serve(connection: ServerSocket) -> None:
        connection.receive()

    with relay_hop(serve) as (hop, _):
        with pytest.raises(HopError) as error:
            hop.ask("POST", "/forward", {}, b"", Deadline.after(5))
    assert error.value.is_cut


def test_an_error_frame_about_the_whole_socket_is_the_cause() -> None:
    def serve(connection: ServerSocket) -> None:
        connection.receive()
        connection.send(envelope.encode_error(wire.Code.UNAUTHORIZED, "this key is unknown"))
        connection.close(4401)

    with relay_hop(serve) as (hop, _), pytest.raises(HopError, match="this key is unknown"):
        hop.ask("POST", "/forward", {}, b"", Deadline.after(5))


def test_too_large_a_body_is_refused_before_it_is_sent() -> None:
    with relay_hop(Echo()) as (hop, server):
        with pytest.raises(HopError, match="too_large"):
            hop.ask("POST", "/forward", {}, bytes(wire.MAX_BODY_BYTES + 1), Deadline.after(5))
        assert not server.sockets


def test_a_body_of_exactly_the_limit_passes() -> None:
    body = bytes(wire.MAX_BODY_BYTES)
    with relay_hop(Echo()) as (hop, _):
        assert hop.ask("POST", "/forward", {}, body, Deadline.after(10)).body == body


def test_an_answer_that_cant_be_read_is_an_error() -> None:
    def serve(connection: ServerSocket) -> None:
        connection.receive()
        connection.send("[]")
        with contextlib.suppress(Exception):
            connection.receive()

    with relay_hop(serve) as (hop, _), pytest.raises(HopError, match="can't be read"):
        hop.ask("POST", "/forward", {}, b"", Deadline.after(5))


class HttpPeer:
    """A few answers of a bare HTTP server, one connection after the other; what came is kept."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.received = list(answers), b""

    def __call__(self, connection: socket.socket) -> None:
        while self.answers:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    return
                head += piece
            self.received += head
            connection.sendall(self.answers.pop(0))
        with contextlib.suppress(OSError):
            connection.recv(1)


def ok(body: bytes, *more: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"X-Meshnet-Shape: 1,1,1", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join([*lines, b"", b""]) + body


def test_a_direct_hop_asks_over_one_kept_connection() -> None:
    peer = HttpPeer(ok(b"one"), ok(b"two"))
    with listening(peer) as port:
        hop = DirectHop(f"http://127.0.0.1:{port}", shared_tls())
        first = hop.ask("POST", "/forward", {"x-meshnet-step": "1"}, b"", Deadline.after(5))
        second = hop.ask("DELETE", "/sessions/" + "a" * 32, {}, b"", Deadline.after(5))
        hop.close()

    assert (first.status, first.headers["x-meshnet-shape"], first.body, second.body) == (200, "1,1,1", b"one", b"two")
    assert b"POST /forward HTTP/1.1\r\n" in peer.received
    assert b"x-meshnet-step: 1\r\n" in peer.received
    assert b"DELETE /sessions/" in peer.received


def test_a_direct_hop_follows_no_redirect() -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    with listening(HttpPeer(answer)) as port:
        hop = DirectHop(f"http://127.0.0.1:{port}", shared_tls())
        assert hop.ask("POST", "/forward", {}, b"", Deadline.after(5)).status == 302
        hop.close()


def test_a_direct_hop_asks_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with listening(HttpPeer(ok(b"direct"))) as port:
        hop = DirectHop(f"http://127.0.0.1:{port}", shared_tls())
        assert hop.ask("POST", "/forward", {}, b"", Deadline.after(5)).body == b"direct"
        hop.close()


def test_a_kept_connection_that_the_node_closed_is_opened_anew() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for number in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(ok(b"%d" % number))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    hop = DirectHop(f"http://127.0.0.1:{listener.getsockname()[1]}", shared_tls())
    bodies = [hop.ask("POST", "/forward", {}, b"x", Deadline.after(5)).body for _ in range(2)]
    thread.join(5)
    hop.close()
    listener.close()

    assert bodies == [b"0", b"1"]


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"", "127.0.0.1"),
        (b"SSH-2.0\r\n\r\n", "127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + bytes(wire.MAX_BODY_BYTES + 1), "more than"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", "127.0.0.1"),
    ],
)
def test_an_answer_that_isnt_whole_http_is_an_error(answer: bytes, cause: str) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        with contextlib.suppress(OSError):
            connection.sendall(answer)

    with listening(serve) as port:
        hop = DirectHop(f"http://127.0.0.1:{port}", shared_tls())
        with pytest.raises(HopError, match=cause):
            hop.ask("POST", "/forward", {}, b"", Deadline.after(5))


def test_a_node_that_answers_byte_by_byte_is_an_error_at_the_deadline() -> None:
    def trickle(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000:
                connection.sendall(bytes([byte]))
                time.sleep(0.01)

    with listening(trickle) as port:
        hop = DirectHop(f"http://127.0.0.1:{port}", shared_tls())
        started = time.monotonic()
        with pytest.raises(HopError, match="in time"):
            hop.ask("POST", "/forward", {}, b"", Deadline.after(0.3))
        assert time.monotonic() - started < 2


@pytest.mark.parametrize("endpoint", ["ftp://127.0.0.1", "127.0.0.1:80", "http://", "http://127.0.0.1:99999"])
def test_an_endpoint_that_is_no_http_address_is_an_error(endpoint: str) -> None:
    with pytest.raises(HopError):
        DirectHop(endpoint, shared_tls()).ask("POST", "/forward", {}, b"", Deadline.after(5))


@pytest.mark.parametrize(
    "relay_addr",
    [
        "wss://relay.example/rpc/ab",  # other scheme
        "ws://other.example/rpc/ab",
        "ws://relay.example:81/rpc/ab",
        "http://relay.example/rpc/ab",
        "ws://relay.example@evil.example/rpc/ab",
    ],
)
def test_the_node_key_goes_to_no_relay_but_the_registered_one(relay_addr: str) -> None:
    dialler = Dialler("ws://relay.example/ws", "id.secret", shared_tls())
    with pytest.raises(HopError):
        dialler.relay_hop(relay_addr)

    assert dialler.relay_hop("ws://relay.example/rpc/ab")


def test_a_node_without_a_relay_takes_no_relay_hop() -> None:
    with pytest.raises(HopError, match="relay"):
        Dialler(None, "id.secret", shared_tls()).relay_hop("ws://relay.example/rpc/ab")
