"""The address a request came from; X-Forwarded-For is believed only from proxies that TRUSTED_PROXIES names."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence


def client_address(meta: Mapping[str, str], trusted_proxies: Sequence[str]) -> str:
    """Of a request's META. Empty when the server doesn't know (a Unix socket)."""
    address = _address(meta.get("REMOTE_ADDR", ""))
    forwarded = meta.get("HTTP_X_FORWARDED_FOR", "").split(",")
    while forwarded and address in trusted_proxies:  # from the right: each proxy appends whom it heard from
        claimed = _address(forwarded.pop().strip())
        if not claimed:
            break
        address = claimed
    return address


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return ""
