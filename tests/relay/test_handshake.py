from __future__ import annotations

from typing import Any

import pytest

from relay.handshake import check_origin
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


@pytest.mark.parametrize(("host", "origin"), [(b"[", b"http://e"), (b":80", b"null"), (b"", b"null")])
def test_a_host_that_is_none_is_nobodys_page(host: bytes, origin: bytes) -> None:
    with pytest.raises(WireError, match="may not open"):
        check_origin([(b"host", host), (b"origin", origin)])
