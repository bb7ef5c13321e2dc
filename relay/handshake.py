"""Whether a browser page of another site opens a socket: programs may from anywhere, pages from this host only."""

from __future__ import annotations

from urllib.parse import urlsplit

from relay.wire import Code, WireError

Headers = list[tuple[bytes, bytes]]


def check_origin(headers: Headers) -> None:
    """Raises 403 for a page of another site. Programs send no Origin, or this host's."""
    fields = dict(headers)
    origin = fields.get(b"origin")
    if origin is None:
        return
    try:
        host = urlsplit(f"//{fields.get(b'host', b'').decode('latin-1')}").hostname
        if host and urlsplit(origin.decode("latin-1")).hostname == host:
            return
    except ValueError:
        pass
    raise WireError(Code.FORBIDDEN, f"a page of {origin.decode('latin-1')[:100]} may not open this socket")
