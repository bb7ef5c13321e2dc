"""What may cross the relay: the requests a node serves, and the headers that aren't a connection's own.

Checked by the relay and by the node, each for itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from relay.wire import Code, WireError

_SERVED = frozenset(
    {
        ("POST", "/forward"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/health"),
    }
)
_SESSION_PATH = re.compile(r"/sessions/([0-9a-f]{32})")
_STAYS_HERE = re.compile(
    r"connection|keep-alive|te|trailer|transfer-encoding|upgrade|host|cookie|set-cookie|authorization|content-length"
    r"|forwarded|x-real-ip|(proxy-|x-forwarded-).*"
)


def check_served(method: str, path: str) -> str | None:
    """Raises 403 unless a node serves this method and exact path; gives the session id of a /sessions/ path."""
    if (method, path) in _SERVED:
        return None
    found = _SESSION_PATH.fullmatch(path)
    if method == "DELETE" and found:
        return found[1]
    raise WireError(Code.FORBIDDEN, f"{method[:16]} {path[:80]} is not served; a node serves {served_paths()}")


def goes_on(method: str, path: str) -> bool:
    """Whether this is of a session that has begun: a step, or its end."""
    return (method, path) == ("POST", "/forward") or method == "DELETE"


def served_paths() -> str:
    return ", ".join(sorted(f"{method} {path}" for method, path in _SERVED)) + ", DELETE /sessions/<32 hex digits>"


def crossing(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that may cross: none that belongs to one connection, names a user or claims an origin."""
    return {name: value for name, value in headers.items() if not _stays_here(name)}


@functools.lru_cache(maxsize=1024)  # the same few names come with every step
def _stays_here(name: str) -> bool:
    return _STAYS_HERE.fullmatch(name) is not None
