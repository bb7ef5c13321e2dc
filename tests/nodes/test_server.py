from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest

from nodes.api import prove
from nodes.server import NodeServer
from relay import headers as names
from relay import wire
from tests.nodes.engines import count_up
from tests.nodes.meshes import Mesh


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh([(0, 2), (2, 4)], relayed=False, direct=True) as made:
        yield made


def connect(mesh: Mesh) -> http.client.HTTPConnection:
    server = mesh.head.server
    assert server
    host, port = server._server.bind_addr
    return http.client.HTTPConnection(host, port, timeout=10)


def post(connection: http.client.HTTPConnection, request: wire.Request) -> http.client.HTTPResponse:
    connection.request("POST", request.path, request.body, dict(request.headers))
    return connection.getresponse()


PLAIN = {"prompt": "a", "max_tokens": 3, "temperature": 0}


def test_a_chat_streams_over_http(mesh: Mesh) -> None:
    connection = connect(mesh)
    response = post(connection, mesh.request(PLAIN, "/v1/completions"))
    stream = response.read()
    connection.close()

    assert response.status == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert stream.endswith(b"data: [DONE]\n\n")
    summary = json.loads(stream.split(b"\n\n")[-3].removeprefix(b"data: "))["meshnet"]
    assert [hop["path"] for hop in summary["hops"]] == ["local", "direct"]


def test_steps_go_over_one_kept_connection(mesh: Mesh) -> None:
    connection = connect(mesh)
    sockets = set()
    for _ in range(3):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        assert connection.sock
        sockets.add(connection.sock.getsockname())
    connection.close()

    assert len(sockets) == 1


def test_a_client_that_leaves_ends_its_chat_and_frees_every_hop(mesh: Mesh) -> None:
    mesh.nodes[1].engine.next_token = slow_count
    num_before = len(mesh.head.engine.steps)
    connection = connect(mesh)
    response = post(connection, mesh.request({"prompt": "a", "max_tokens": 150}, "/v1/completions", max_tokens=150))
    assert response.read(10)
    response.close()
    connection.close()

    mesh.wait_until_free()
    mesh.nodes[1].engine.next_token = count_up
    assert len(mesh.head.engine.steps) - num_before < 150


def slow_count(position: int, last_id: int) -> int:
    time.sleep(0.02)
    return last_id + 1


def test_an_error_is_json_with_its_status(mesh: Mesh) -> None:
    connection = connect(mesh)
    connection.request("POST", "/forward", b"x", {"content-type": "application/octet-stream"})
    response = connection.getresponse()
    code, message = wire.error_of(response.status, response.read())
    connection.close()

    assert (response.status, code) == (400, "bad_request")
    assert names.SESSION in message


def test_a_proof_goes_over_http(mesh: Mesh) -> None:
    connection, nonce = connect(mesh), "ab" * 16
    connection.request("GET", "/health", headers={names.NONCE: nonce})
    response = connection.getresponse()
    response.read()
    connection.close()

    assert response.headers[names.PROOF] == prove(mesh.head.key, nonce)


def raw(mesh: Mesh, request: bytes) -> bytes:
    server = mesh.head.server
    assert server
    with socket.create_connection(server._server.bind_addr, timeout=5) as connection:
        connection.sendall(request)
        answer = b""
        while True:
            try:
                piece = connection.recv(65536)
            except ConnectionError:
                return answer
            if not piece:
                return answer
            answer += piece


def line(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    fields = ["Host: x", "Connection: close", *headers]
    return "\r\n".join([f"{method} {target} HTTP/1.1", *fields, "", ""]).encode() + body


@pytest.mark.parametrize(
    "target", ["/../admin", "//evil", "/%2e%2e/x", "/%66orward", "/forward?x=1", "http://169.254.169.254/", "/health/"]
)
def test_a_path_is_taken_as_it_came(mesh: Mesh, target: str) -> None:
    status = raw(mesh, line("POST", target, "Content-Length: 0")).split(b" ")[1]

    assert status in (b"400", b"403")


@pytest.mark.parametrize("method", ["TRACE", "PUT", "OPTIONS"])
def test_other_methods_are_refused(mesh: Mesh, method: str) -> None:
    assert raw(mesh, line(method, "/forward", "Content-Length: 0")).split(b" ")[1] == b"403"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Content-Length: -1"], b"400"),
        (["Content-Length: x"], b"400"),
        (["Transfer-Encoding: chunked"], b"400"),
        ([f"Content-Length: {wire.MAX_BODY_BYTES + 1}"], b"413"),
        (["Content-Length: 67108864"], b"413"),
        (["X-Big: " + "a" * 40_000], b"413"),
    ],
)
def test_a_length_that_is_bad_or_too_large_is_refused_before_it_is_read(
    mesh: Mesh, headers: list[str], status: bytes
) -> None:
    assert raw(mesh, line("POST", "/forward", *headers)).split(b" ")[1] == status


def test_until_the_node_is_ready_it_says_so() -> None:
    server = NodeServer("127.0.0.1", 0)
    host, port = server.start()
    try:
        connection = http.client.HTTPConnection(host, port, timeout=5)
        connection.request("GET", "/health")
        response = connection.getresponse()
        assert response.status == 503
        assert b"loading" in response.read()
        connection.close()
    finally:
        server.stop(1)


def test_a_port_that_is_taken_is_an_error_at_once(mesh: Mesh) -> None:
    assert mesh.head.server
    with pytest.raises(OSError):
        NodeServer(*mesh.head.server._server.bind_addr).start()
