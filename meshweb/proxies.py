"""Who really asks, where proxies stand in front: address and scheme of a connection, put right once for everybody.

Django, the relay's doors and everything that slows or checks an address read the ASGI scope's `client` and `scheme`.
X-Forwarded-For and X-Forwarded-Proto are believed from TRUSTED_PROXIES alone, and no such header goes further: what
stands behind can't believe a forged one by mistake. A client without an IP address, as on a Unix socket, is None.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

Scope = MutableMapping[str, Any]
Application = Callable[[Any, Any, Any], Awaitable[None]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Headers = Sequence[tuple[bytes, bytes]]

_CLAIMS = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-forwarded-server",
        b"x-real-ip",
    }
)
_SECURE = {"http": "https", "websocket": "wss"}
_PLAIN = {"http": "http", "websocket": "ws"}


class TrustedProxies:
    def __init__(self, application: Application, networks: Sequence[Network]) -> None:
        self._application, self._networks = application, networks

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await self._application(corrected(scope, self._networks), receive, send)


def corrected(scope: Scope, networks: Sequence[Network]) -> Scope:
    """The scope as if its client had come straight here."""
    kind = scope["type"]
    if kind not in _SECURE:
        return scope
    headers: Headers = scope["headers"]
    kept = [field for field in headers if field[0].lower() not in _CLAIMS]
    address = readable_address(str(scope["client"][0])) if scope.get("client") else ""
    if not _is_trusted(address, networks):
        return {**scope, "client": [address, scope["client"][1]] if address else None, "headers": kept}
    client = _client(address, _claims(headers, b"x-forwarded-for"), networks)
    port = scope["client"][1] if client == address else 0  # of the client's own port nothing is said
    schemes = _claims(headers, b"x-forwarded-proto")
    scheme = scope.get("scheme", _PLAIN[kind])
    if schemes:
        scheme = (_SECURE if schemes[-1].lower() in ("https", "wss") else _PLAIN)[kind]
    return {**scope, "client": [client, port], "scheme": scheme, "headers": kept}


def readable_address(text: str) -> str:
    """Of an address its one spelling, an IPv4 one's where it is mapped; empty when it is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _client(address: str, forwarded: list[str], networks: Sequence[Network]) -> str:
    """From the right: each proxy appends whom it heard from. The first one that is no proxy of ours is the client."""
    while forwarded and _is_trusted(address, networks):
        claimed = readable_address(forwarded.pop())
        if not claimed:
            break
        address = claimed
    return address


def _claims(headers: Headers, name: bytes) -> list[str]:
    text = b",".join(value for field, value in headers if field.lower() == name).decode("latin-1")
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _is_trusted(address: str, networks: Sequence[Network]) -> bool:
    return bool(address) and any(ipaddress.ip_address(address) in network for network in networks)
