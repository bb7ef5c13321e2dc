"""Bad credentials over HTTP cost time: an address that brings many is answered 429 for a while, unasked.

One count for an address, shared with the relay's doors (relay/throttle.py). A credential that was good once in this
process is always looked up: a stranger behind the same address keeps nobody from working. That it was good grants
nothing, it may be revoked by now.
"""

from __future__ import annotations

import hashlib
import math
from threading import Lock

from django.http import HttpRequest

from relay.auth import authenticator
from tracker.errors import ApiError

MAX_KNOWN = 10_000

_lock = Lock()
_known: dict[bytes, None] = {}  # SHA-256 of credentials, the one longest unused first


def check(request: HttpRequest, text: str) -> None:
    """Before the credential is looked up. Raises ApiError 429."""
    left_s = authenticator.throttle.left_s(address(request))
    if text and left_s and _digest(text) not in _known:
        headers = {"Retry-After": str(math.ceil(left_s))}
        message = "Too many bad credentials came from your address; try again in a few seconds."
        raise ApiError(429, message, code="rate_limited", headers=headers)


def is_closed(request: HttpRequest) -> bool:
    """For what is asked without a credential: a password."""
    return authenticator.throttle.left_s(address(request)) > 0


def failed(request: HttpRequest, text: str) -> None:
    """Nothing was guessed where nothing was brought."""
    if text:
        authenticator.throttle.failed(address(request))


def passed(text: str) -> None:
    """It was good, or it was just made."""
    digest = _digest(text)
    with _lock:
        _known.pop(digest, None)
        _known[digest] = None
        if len(_known) > MAX_KNOWN:
            del _known[next(iter(_known))]


def address(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR", ""))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
