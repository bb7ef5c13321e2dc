from __future__ import annotations

from io import BytesIO
from ipaddress import ip_network
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest

from meshweb.proxies import TrustedProxies, corrected, readable_address

TRUSTED = [ip_network("10.0.0.0/24"), ip_network("fd00::/8")]


def scope(client: Any, *headers: tuple[bytes, bytes], kind: str = "http", **rest: Any) -> dict[str, Any]:
    return {"type": kind, "client": client, "headers": [(b"host", b"x"), *headers], **rest}


@pytest.mark.parametrize(
    ("client", "forwarded", "address"),
    [
        ("9.9.9.9", b"1.1.1.1", "9.9.9.9"),  # whoever isn't a proxy can claim anything
        ("10.0.0.1", b"1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", b"6.6.6.6, 1.1.1.1, 10.0.0.2", "1.1.1.1"),
        ("10.0.0.1", b"6.6.6.6, 1.1.1.1", "1.1.1.1"),
        ("10.0.0.1", b"", "10.0.0.1"),
        ("10.0.0.1", b"10.0.0.3,10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", b"junk", "10.0.0.1"),
        ("10.0.0.1", b"6.6.6.6, junk, 10.0.0.2", "10.0.0.2"),
        ("::ffff:10.0.0.1", b"::ffff:1.1.1.1", "1.1.1.1"),
        ("fd00::1", b"2001:DB8::0001", "2001:db8::1"),
        ("fe80::1%eth0", b"", "fe80::1"),
    ],
)
def test_the_address_is_the_last_one_that_no_trusted_proxy_has(client: str, forwarded: bytes, address: str) -> None:
    found = corrected(scope([client, 5000], (b"x-forwarded-for", forwarded)), TRUSTED)
    assert found["client"][0] == address
    assert found["client"][1] == (5000 if address == readable_address(client) else 0)


def test_a_header_sent_twice_is_one_list() -> None:
    twice = [(b"X-Forwarded-For", b"6.6.6.6"), (b"x-forwarded-for", b"1.1.1.1")]
    assert corrected(scope(["10.0.0.1", 1], *twice), TRUSTED)["client"] == ["1.1.1.1", 0]


@pytest.mark.parametrize("client", [None, ["", 0], ["/run/mesh.sock", 0]])
def test_a_client_without_an_address_is_none_and_believed_nothing(client: Any) -> None:
    found = corrected(scope(client, (b"x-forwarded-for", b"1.1.1.1"), scheme="http"), TRUSTED)
    assert (found["client"], found["scheme"]) == (None, "http")


@pytest.mark.parametrize(
    ("kind", "client", "forwarded", "scheme"),
    [
        ("http", "10.0.0.1", b"https", "https"),
        ("http", "10.0.0.1", b"http, https", "https"),  # the last one is our own proxy's word
        ("http", "10.0.0.1", b"https, http", "http"),
        ("http", "10.0.0.1", b"junk", "http"),
        ("http", "10.0.0.1", b"", "http"),
        ("http", "9.9.9.9", b"https", "http"),
        ("websocket", "10.0.0.1", b"https", "wss"),
        ("websocket", "9.9.9.9", b"https", "ws"),
    ],
)
def test_the_scheme_is_the_proxys_word(kind: str, client: str, forwarded: bytes, scheme: str) -> None:
    plain = {"http": "http", "websocket": "ws"}[kind]
    found = corrected(scope([client, 1], (b"x-forwarded-proto", forwarded), kind=kind, scheme=plain), TRUSTED)
    assert found["scheme"] == scheme


@pytest.mark.parametrize("client", ["10.0.0.1", "9.9.9.9"])
def test_no_claim_goes_further(client: str) -> None:
    claims = [(name, b"1.1.1.1") for name in (b"Forwarded", b"X-Forwarded-For", b"x-forwarded-host", b"x-real-ip")]
    given = scope([client, 1], *claims)
    assert corrected(given, TRUSTED)["headers"] == [(b"host", b"x")]
    assert len(given["headers"]) == 5  # the server's own scope stays as it was


async def test_every_application_behind_it_sees_the_corrected_scope() -> None:
    seen = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    wrapped = TrustedProxies(application, TRUSTED)
    await wrapped(scope(["10.0.0.1", 1], (b"x-forwarded-for", b"1.1.1.1")), None, None)
    await wrapped({"type": "lifespan"}, None, None)
    assert (seen[0]["client"], seen[1]) == (["1.1.1.1", 0], {"type": "lifespan"})


async def test_django_takes_the_requests_address_and_scheme_from_it() -> None:
    requests = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        requests.append(ASGIRequest(scope, BytesIO()))

    claims = [(b"x-forwarded-for", b"1.1.1.1"), (b"x-forwarded-proto", b"https")]
    given = scope(["10.0.0.1", 1], *claims, method="GET", path="/", query_string=b"", scheme="http")
    await TrustedProxies(application, TRUSTED)(given, None, None)
    assert requests[0].META["REMOTE_ADDR"] == "1.1.1.1"
    assert requests[0].is_secure()
