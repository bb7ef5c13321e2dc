from __future__ import annotations

from typing import Any

import pytest

from relay.handshake import check_origin, client_address
from relay.wire import Code, WireError


@pytest.mark.parametrize(
    "headers",
    [
        [(b"host", b"mesh.example")],
        [(b"host", b"mesh.example:8000"), (b"origin", b"http://mesh.example:8000")],
        [(b"host", b"mesh.example"), (b"origin", b"https://MESH.example")],
        [(b"host", b"[::1]:80"), (b"origin", b"http://[::1]")],
    ],
)
def test_programs_and_pages_of_this_host_pass(headers: Any) -> None:
    check_origin(headers)


@pytest.mark.parametrize(
    "origin", [b"https://evil.example", b"null", b"", b"http://[", b"\xff", b"http://mesh.example.evil"]
)
def test_pages_of_other_hosts_are_refused(origin: bytes) -> None:
    with pytest.raises(WireError, match="may not open") as caught:
        check_origin([(b"host", b"mesh.example"), (b"origin", origin)])
    assert caught.value.code is Code.FORBIDDEN


@pytest.mark.parametrize(
    ("client", "forwarded", "address"),
    [
        (["9.9.9.9", 1], b"1.1.1.1", "9.9.9.9"),  # whoever isn't a proxy can claim anything
        (["10.0.0.1", 1], b"1.1.1.1", "1.1.1.1"),
        (["10.0.0.1", 1], b"6.6.6.6, 1.1.1.1, 10.0.0.2", "1.1.1.1"),
        (["10.0.0.1", 1], b"", "10.0.0.1"),
        (["10.0.0.1", 1], b"10.0.0.3,10.0.0.2", "10.0.0.3"),
        (["10.0.0.1", 1], b"junk", "junk"),
        (None, b"", ""),
    ],
)
def test_the_address_that_counts_is_the_last_one_no_trusted_proxy_has(
    client: Any, forwarded: bytes, address: str
) -> None:
    assert client_address(client, [(b"x-forwarded-for", forwarded)], ["10.0.0.0/24"]) == address
