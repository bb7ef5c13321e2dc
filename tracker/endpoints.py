"""Endpoints that nodes register: which addresses the site dials at all, and the proof that a node is behind one.

A node could name any address. So a name is resolved once, the address it gave is checked, only that address is dialled,
and it is used for traffic only after it answered a nonce with an HMAC under the hash of the node's key.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import io
import ipaddress
import json
import re
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from relay import headers

DIAL_S = 3.0  # resolving, connecting and the answer together
MAX_ANSWER_BYTES = 4096

_METADATA = frozenset(
    ipaddress.ip_address(text) for text in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16")
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # IPv6 addresses that carry an IPv4 one
_HOST = re.compile(r"[A-Za-z0-9._-]{1,200}|[0-9a-fA-F:.]{2,45}")
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_resolvers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="resolve")  # getaddrinfo has no deadline of its own

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class EndpointRefused(Exception):
    """Why an endpoint isn't dialled or isn't used, for the owner of the node."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int

    def at(self, address: str) -> str:
        """The URL by which a checked address is dialled."""
        return f"http://[{address}]:{self.port}" if ":" in address else f"http://{address}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Of "http://host:port", nothing more. Raises EndpointRefused."""
    wanted = f"an endpoint is like http://203.0.113.7:7002; this is {text[:100]!r}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        raise EndpointRefused(wanted) from None
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None
    has_more = has_more or not _PRINTABLE.fullmatch(text)  # urlsplit drops line ends in silence
    if parts.scheme != "http" or has_more or not _HOST.fullmatch(host):
        raise EndpointRefused(wanted)
    return Endpoint(host, port)


def refusal(address: Address, *, allow_private: bool, registered_from: str) -> str | None:
    """Why this address is never dialled, or not for this node; None when it may be."""
    inner = _carried(address)
    is_reserved = inner.is_reserved and not inner.is_loopback  # ::1 is both
    if inner in _METADATA or inner.is_link_local or inner.is_multicast or inner.is_unspecified or is_reserved:
        return f"{address} is an address that this site never dials"
    is_its_own = bool(registered_from) and inner == _carried(ipaddress.ip_address(registered_from))
    if not inner.is_global and not allow_private and not is_its_own:
        return f"{address} is private, and the node registered from {registered_from}; ALLOW_PRIVATE_ENDPOINTS is off"
    return None


def resolve(endpoint: Endpoint, *, allow_private: bool, registered_from: str) -> str:
    """The first address of the endpoint that may be dialled. Raises EndpointRefused."""
    try:
        found = _resolvers.submit(socket.getaddrinfo, endpoint.host, endpoint.port, type=socket.SOCK_STREAM).result(
            DIAL_S
        )
    except (OSError, UnicodeError, TimeoutError) as error:
        raise EndpointRefused(f"{endpoint.host} can't be resolved: {error or 'no answer'}") from None
    why = f"{endpoint.host} has no address"
    for *_, sockaddr in found:
        address = ipaddress.ip_address(str(sockaddr[0]).partition("%")[0])
        refused = refusal(address, allow_private=allow_private, registered_from=registered_from)
        if refused is None:
            return str(address)
        why = refused
    raise EndpointRefused(why)


def prove(
    endpoint: Endpoint,
    address: str,
    secret_hash: str,
    *,
    new_nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    deadline_s: float = DIAL_S,
) -> None:
    """Asks GET /health with a nonce and checks the proof. Raises EndpointRefused."""
    nonce = new_nonce()
    request = f"GET /health HTTP/1.0\r\nHost: {endpoint.host}:{endpoint.port}\r\n{headers.NONCE}: {nonce}\r\n\r\n"
    try:
        answer = _exchange(address, endpoint.port, request.encode(), deadline_s)
        given = _proof_in(answer)
    except (OSError, http.client.HTTPException) as error:
        raise EndpointRefused(f"{endpoint.at(address)} doesn't answer GET /health: {error or 'timed out'}") from None
    if not hmac.compare_digest(given.encode(), proof(secret_hash, nonce).encode()):
        raise EndpointRefused(f"{endpoint.at(address)} answers, but doesn't hold this node's key")


def proof(secret_hash: str, nonce: str) -> str:
    """Hex HMAC-SHA256 under the SHA-256 of the node key's secret part."""
    return hmac.new(bytes.fromhex(secret_hash), nonce.encode(), hashlib.sha256).hexdigest()


def _exchange(address: str, port: int, request: bytes, deadline_s: float) -> bytes:
    """Sends, reads until the other side closes. The deadline is over all of it: one that trickles can't hold us."""
    ends = time.monotonic() + deadline_s
    with socket.create_connection((address, port), timeout=deadline_s) as connection:
        connection.sendall(request)
        answer = b""
        while len(answer) <= MAX_ANSWER_BYTES:
            connection.settimeout(max(0.001, ends - time.monotonic()))
            received = connection.recv(MAX_ANSWER_BYTES)
            if not received:
                return answer
            answer += received
    raise http.client.HTTPException(f"its answer is over {MAX_ANSWER_BYTES} bytes")


def _proof_in(answer: bytes) -> str:
    """From the header, or from the JSON body; empty when there is none. A redirect has none."""
    response = http.client.HTTPResponse(_Answered(answer))  # type: ignore[arg-type]
    response.begin()
    if response.status != 200:
        raise http.client.HTTPException(f"status {response.status}")
    in_header = response.getheader(headers.PROOF)
    if in_header:
        return in_header
    try:
        body = json.loads(response.read())
    except (ValueError, RecursionError):
        return ""
    return str(body.get("proof", "")) if isinstance(body, dict) else ""


class _Answered:
    """What http.client reads from, when all has been read already."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._answer)


def _carried(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one, where there is one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
