"""What the HTTP headers of a handshake say of the other side: its address, and whether a browser page sent it."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from relay.wire import Code, WireError

Headers = list[tuple[bytes, bytes]]


def check_origin(headers: Headers) -> None:
    """Raises 403 for a page of another site. Programs send no Origin, or this host's."""
    fields = dict(headers)
    origin = fields.get(b"origin")
    if origin is None:
        return
    host = urlsplit(f"//{fields.get(b'host', b'').decode('latin-1')}")
    try:
        if urlsplit(origin.decode("latin-1")).hostname == host.hostname:
            return
    except ValueError:
        pass
    raise WireError(Code.FORBIDDEN, f"a page of {origin.decode('latin-1')[:100]} may not open this socket")


def client_address(client: Sequence[object] | None, headers: Headers, trusted: Sequence[str]) -> str:
    """The address that counts: the last one in X-Forwarded-For that no trusted proxy has."""
    address = str(client[0]) if client else ""
    forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
    for earlier in reversed([entry.strip() for entry in forwarded.split(",") if entry.strip()]):
        if not _is_in(address, trusted):
            break
        address = earlier
    return address[:64]


def _is_in(address: str, networks: Sequence[str]) -> bool:
    try:
        return any(ip_address(address) in ip_network(network, strict=False) for network in networks)
    except ValueError:
        return False
