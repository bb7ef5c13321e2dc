from __future__ import annotations

import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest

from tests.tracker.fakes import http_server, send
from tracker import credentials, endpoints
from tracker.endpoints import Endpoint, EndpointRefused, parse_endpoint

KEY = credentials.mint(credentials.Kind.NODE)
NEVER = [
    "169.254.169.254",
    "169.254.1.1",
    "fe80::1",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "ff02::1",
    "0.0.0.0",
    "::",
    "255.255.255.255",
    "240.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
]
PRIVATE = ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "::ffff:127.0.0.1"]


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_dialled(address: str) -> None:
    refused = endpoints.refusal(ipaddress.ip_address(address), allow_private=True, registered_from=address)
    assert refused
    assert "never dials" in refused


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_dialled_only_when_allowed(address: str) -> None:
    parsed = ipaddress.ip_address(address)
    assert endpoints.refusal(parsed, allow_private=True, registered_from="") is None
    refused = endpoints.refusal(parsed, allow_private=False, registered_from="203.0.113.9")
    assert refused
    assert "ALLOW_PRIVATE_ENDPOINTS" in refused


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_is_dialled_when_the_node_registered_from_it(address: str) -> None:
    assert endpoints.refusal(ipaddress.ip_address(address), allow_private=False, registered_from=address) is None


def test_public_addresses_are_dialled() -> None:
    for address in ("8.8.8.8", "2001:4860:4860::8888"):
        assert endpoints.refusal(ipaddress.ip_address(address), allow_private=False, registered_from="") is None


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org:1",
        "ftp://example.org",
        "http://",
        "http://user@example.org:1",
        "http://example.org:1/path",
        "http://example.org:1?x",
        "http://example.org:1#x",
        "http://example.org:99999",
        "http://exa mple:1",
        "http://a\r\nb:1",
        "example.org:7002",
        "",
    ],
)
def test_an_endpoint_is_scheme_host_and_port_and_nothing_more(text: str) -> None:
    with pytest.raises(EndpointRefused, match="an endpoint is like"):
        parse_endpoint(text)


def test_an_endpoint_is_dialled_by_the_checked_address() -> None:
    assert parse_endpoint("http://node.example.org:7002").at("203.0.113.7") == "http://203.0.113.7:7002"
    assert parse_endpoint("http://node.example.org").at("2001:db8::1") == "http://[2001:db8::1]:80"
    assert parse_endpoint("http://[2001:db8::1]:7002/") == Endpoint("2001:db8::1", 7002)


def test_resolving_checks_what_the_name_stands_for() -> None:
    assert endpoints.resolve(Endpoint("localhost", 80), allow_private=True, registered_from="") in ("127.0.0.1", "::1")
    with pytest.raises(EndpointRefused, match="private"):
        endpoints.resolve(Endpoint("localhost", 80), allow_private=False, registered_from="203.0.113.9")
    with pytest.raises(EndpointRefused, match="can't be resolved"):
        endpoints.resolve(Endpoint("no-such-host.invalid", 80), allow_private=True, registered_from="")


def in_header(handler: BaseHTTPRequestHandler) -> None:
    proof = endpoints.proof(KEY.secret_hash, handler.headers["X-Meshnet-Nonce"])
    send(handler, 200, b"{}", x_meshnet_proof=proof)


def in_body(handler: BaseHTTPRequestHandler) -> None:
    proof = endpoints.proof(KEY.secret_hash, handler.headers["X-Meshnet-Nonce"])
    send(handler, 200, json.dumps({"proof": proof}).encode())


@pytest.mark.parametrize("answer", [in_header, in_body])
def test_a_server_that_holds_the_key_proves_it(answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
    with http_server(answer) as url:
        endpoints.prove(parse_endpoint(url), "127.0.0.1", KEY.secret_hash)


def another_key(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, b"{}", x_meshnet_proof=endpoints.proof("00" * 32, handler.headers["X-Meshnet-Nonce"]))


def an_old_nonce(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, b"{}", x_meshnet_proof=endpoints.proof(KEY.secret_hash, "0" * 32))


def a_redirect(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 302, b"", location="http://169.254.169.254/")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (another_key, "doesn't hold this node's key"),
        (an_old_nonce, "doesn't hold this node's key"),
        (a_redirect, "status 302"),
        (lambda handler: send(handler, 200, b"[]"), "doesn't hold this node's key"),
        (lambda handler: send(handler, 200, b"[" * 3500), "doesn't hold this node's key"),
        (lambda handler: send(handler, 200, b"x" * 9000), "over 4096 bytes"),
        (lambda handler: send(handler, 200, b"{}", x_meshnet_proof="é"), "doesn't hold this node's key"),
    ],
)
def test_another_answer_proves_nothing(answer: Callable[[BaseHTTPRequestHandler], None], why: str) -> None:
    with http_server(answer) as url, pytest.raises(EndpointRefused, match=why):
        endpoints.prove(parse_endpoint(url), "127.0.0.1", KEY.secret_hash)


def test_a_closed_port_proves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(EndpointRefused, match="doesn't answer"):
        endpoints.prove(Endpoint("127.0.0.1", port), "127.0.0.1", KEY.secret_hash)


def test_a_server_that_trickles_is_left_at_the_deadline() -> None:
    is_over = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        while not is_over.wait(0.02):
            try:
                handler.wfile.write(b"x")
            except OSError:
                return

    with http_server(trickle) as url:
        started = time.monotonic()
        with pytest.raises(EndpointRefused, match="doesn't answer"):
            endpoints.prove(parse_endpoint(url), "127.0.0.1", KEY.secret_hash, deadline_s=0.3)
        assert time.monotonic() - started < 2
        is_over.set()
