from __future__ import annotations

import pytest

from tracker.addresses import client_address


@pytest.mark.parametrize(
    ("remote", "forwarded", "trusted", "address"),
    [
        ("203.0.113.9", "", [], "203.0.113.9"),
        ("203.0.113.9", "8.8.8.8", [], "203.0.113.9"),
        ("10.0.0.1", "8.8.8.8", ["10.0.0.1"], "8.8.8.8"),
        ("10.0.0.1", "1.1.1.1, 8.8.8.8", ["10.0.0.1"], "8.8.8.8"),
        ("10.0.0.1", "1.1.1.1, 8.8.8.8, 10.0.0.2", ["10.0.0.1", "10.0.0.2"], "8.8.8.8"),
        ("10.0.0.1", "", ["10.0.0.1"], "10.0.0.1"),
        ("10.0.0.1", "nonsense", ["10.0.0.1"], "10.0.0.1"),
        ("fe80::1%eth0", "", [], "fe80::1"),
        ("", "8.8.8.8", [], ""),
    ],
)
def test_only_trusted_proxies_are_believed(remote: str, forwarded: str, trusted: list[str], address: str) -> None:
    meta = {"REMOTE_ADDR": remote, "HTTP_X_FORWARDED_FOR": forwarded}
    assert client_address(meta, trusted) == address
