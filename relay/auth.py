"""Who opens a socket: the credential it carries, asked of the callable that settings.RELAY_AUTHENTICATE names.

The relay knows neither nodes nor keys. Good answers are kept for ten seconds under the credential's SHA-256, so that
a socket per hop costs no query; bad ones are never kept, and an address that gives many has to wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from django.conf import settings
from django.db import close_old_connections
from django.utils.module_loading import import_string

from relay.hub import hub
from relay.throttle import Throttle, owner
from relay.wire import Code, WireError

KEPT_S = 10.0
MAX_KEPT = 10_000
MAX_LOOKUPS = 256  # waiting for the database
MAX_WAITING_PER_ADDRESS = 16
REVOKED = "the credential has been revoked or replaced"

threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="relay-auth")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose credential it is. `scope`: peers may ask each other within one, it is the name of their model."""

    peer_id: str
    scope: str
    approved: bool
    reason: str = ""  # why not approved, for its owner to read


class Authenticator:
    """`authenticate` is synchronous and may use the ORM; it runs in a few threads of its own."""

    def __init__(self, authenticate: Callable[[str], Identity | None], clock: Callable[[], float]) -> None:
        self._authenticate, self._clock = authenticate, clock
        self._kept: dict[bytes, tuple[Identity, float]] = {}
        self._lookups: dict[bytes, asyncio.Future[Identity | None]] = {}
        self.throttle = Throttle(clock)
        self._waiting: Counter[str] = Counter()
        self._num_forgotten = 0

    def known(self, credential: str) -> Identity | None:
        """The answer of the last seconds, without waiting."""
        identity, until = self._kept.get(_digest(credential), (None, 0.0))
        return identity if self._clock() < until else None

    async def identify(self, credential: str, address: str) -> Identity:
        """Raises 401 for a credential that is nobody's, 429 and 503 when too many are being checked."""
        await self._wait_turn(address)
        identity = await self._look_up(credential)
        if identity is None:
            self.throttle.failed(address)
            raise WireError(Code.UNAUTHORIZED, "the credential is unknown or revoked")
        return identity

    def forget(self, peer_id: str) -> None:
        """From any thread."""
        self._num_forgotten += 1
        for digest, (identity, _) in list(self._kept.items()):
            if identity.peer_id == peer_id:
                self._kept.pop(digest, None)

    async def _wait_turn(self, address: str) -> None:
        wait_s = self.throttle.wait_s(address)
        if not wait_s:
            return
        whose = owner(address)
        if self._waiting[whose] >= MAX_WAITING_PER_ADDRESS:
            raise WireError(Code.RATE_LIMITED, "too many bad credentials came from this address; try again in a minute")
        self._waiting[whose] += 1
        try:
            await asyncio.sleep(wait_s)
        finally:
            self._waiting[whose] -= 1
            if not self._waiting[whose]:
                del self._waiting[whose]

    async def _look_up(self, credential: str) -> Identity | None:
        """One query at a time for a credential, however many sockets bring it."""
        digest = _digest(credential)
        lookup = self._lookups.get(digest)
        if lookup is None:
            if len(self._lookups) >= MAX_LOOKUPS:
                raise WireError(Code.BUSY, "too many credentials are being checked; try again")
            lookup = asyncio.ensure_future(self._ask(digest, credential))
            self._lookups[digest] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(digest, None))
        return await asyncio.shield(lookup)  # whoever leaves first takes nobody's answer along

    async def _ask(self, digest: bytes, credential: str) -> Identity | None:
        loop = asyncio.get_running_loop()
        while True:
            num_forgotten = self._num_forgotten
            identity = await loop.run_in_executor(threads, self._authenticate, credential)
            if num_forgotten == self._num_forgotten:
                break  # otherwise the answer may be from before a revocation
        if identity is not None and identity.approved:
            self._keep(digest, identity)
        return identity

    def _keep(self, digest: bytes, identity: Identity) -> None:
        """For one that comes, up to two of the oldest go: those that have expired, and one that is too many."""
        now = self._clock()
        self._kept.pop(digest, None)
        for oldest, (_, until) in list(islice(self._kept.items(), 2)):
            if until <= now or len(self._kept) >= MAX_KEPT:
                self._kept.pop(oldest, None)
        self._kept[digest] = identity, now + KEPT_S


def bearer(headers: list[tuple[bytes, bytes]]) -> str:
    """The credential of a handshake. Raises 401 when there is none."""
    for name, value in headers:
        if name == b"authorization":
            kind, _, credential = value.decode("latin-1").strip().partition(" ")
            if kind.lower() == "bearer" and credential.strip():
                return credential.strip()
    raise WireError(Code.UNAUTHORIZED, "the handshake must carry Authorization: Bearer <credential>")


def forget(peer_id: str, why: str = REVOKED) -> None:
    """The peer's credential no longer counts: drops what is kept of it and closes what it has open. Any thread."""
    _expel(peer_id, Code.UNAUTHORIZED, why)


def disconnect(peer_id: str, why: str) -> None:
    """Closes what the peer has open, in whatever process. Its credential stays good: it may come back. Any thread."""
    _expel(peer_id, Code.DRAINING, why)


def expel_here(peer_id: str, code: Code, why: str) -> None:
    authenticator.forget(peer_id)
    hub.expel(peer_id, why, code)


def _expel(peer_id: str, code: Code, why: str) -> None:
    expel_here(peer_id, code, why)
    for herald in list(heralds):
        herald(peer_id, code, why)


def _authenticate(credential: str) -> Identity | None:
    close_old_connections()  # this thread outlives any connection's welcome
    try:
        identity: Identity | None = import_string(settings.RELAY_AUTHENTICATE)(credential)
        return identity
    finally:
        close_old_connections()


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()


heralds: list[Callable[[str, Code, str], None]] = []  # they tell other processes who is put out, and why
authenticator = Authenticator(_authenticate, time.monotonic)
