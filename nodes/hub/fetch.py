"""Fetches bytes of a hub's files and doesn't give up easily: attempts that fail are repeated while there is progress.

What has come is kept in sparse files, so that an attempt begins where the one before has ended.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from nodes.backoff import Backoff
from nodes.hub.answers import Changed, TryAgain
from nodes.hub.client import Hub
from nodes.hub.listing import HubFile, Listing
from nodes.hub.spans import Span, num_bytes
from nodes.hub.sparse import SparseFile
from nodes.layout import ModelError

logger = logging.getLogger(__name__)

NO_PROGRESS_DEADLINE_S = 600.0  # beyond the five minutes that huggingface.co counts requests in
FIRST_BACKOFF_S, MOST_BACKOFF_S = 1.0, 30.0
MOST_RETRY_AFTER_S = 120.0
LOOK_EVERY_S = 0.2
HASH_CHUNK_BYTES = 4 << 20

Result = TypeVar("Result")
Tick = Callable[[int], None]  # so many bytes more have come, perhaps none; may raise to end the work


def no_tick(_count: int) -> None:
    """A Tick that tells nobody."""


class HubUnreachable(OSError):
    """The hub doesn't answer, or only with "later", for long enough to give up. What has come is kept."""


class Patience:
    """Repeats attempts until one succeeds, or until none has made progress for `deadline_s`."""

    def __init__(self, deadline_s: float = NO_PROGRESS_DEADLINE_S, backoff: Backoff | None = None) -> None:
        self._deadline_s, self._backoff = deadline_s, backoff or Backoff(FIRST_BACKOFF_S, MOST_BACKOFF_S)
        self._since = time.monotonic()

    def progress(self) -> None:
        self._since = time.monotonic()
        self._backoff.reset()

    def repeat(self, attempt: Callable[[], Result], tick: Tick = no_tick) -> Result:
        """Raises HubUnreachable, and whatever else the attempt or `tick` raises."""
        self.progress()
        while True:
            try:
                return attempt()
            except TryAgain as error:
                self._pause(error, tick)

    def _pause(self, error: TryAgain, tick: Tick) -> None:
        left_s = self._since + self._deadline_s - time.monotonic()
        pause_s = max(self._backoff.next_s(), min(error.after_s, MOST_RETRY_AFTER_S))
        if left_s <= 0:
            hint = "is HF_ENDPOINT right, and is there a network? HF_HUB_OFFLINE=1 serves what the cache has"
            raise HubUnreachable(f"the hub: {error}; nothing came for {self._deadline_s:.0f} s: {hint}") from None
        logger.warning("The hub: %s; trying again in %.1f s", error, pause_s)
        until = time.monotonic() + min(pause_s, left_s)
        while (left_s := until - time.monotonic()) > 0:
            tick(0)
            time.sleep(min(left_s, LOOK_EVERY_S))


class Fetcher:
    """Files of one model at one commit."""

    def __init__(self, hub: Hub, listing: Listing, patience: Patience | None = None) -> None:
        self._hub, self._listing, self._patience = hub, listing, patience or Patience()

    def read(self, name: str, tick: Tick = no_tick) -> bytes:
        """All of a small file, its hash checked where the hub lists one. Raises ModelError, HubUnreachable."""
        data = self._patience.repeat(lambda: self._hub.read(self._listing, name), tick)
        _check_hash(name, self._listing.files[name], data)
        return data

    def fill(self, file: SparseFile, spans: Iterable[Span], tick: Tick = no_tick) -> None:
        """Fetches what the file lacks of these spans, one request for each run of bytes.

        Raises ModelError, HubUnreachable, OSError and what `tick` raises; what has come by then stays in the file.
        """
        wanted, has_changed = list(spans), False
        while missing := file.known.missing(wanted):
            try:
                self._patience.repeat(lambda: self._attempt(file, wanted, tick), tick)
            except Changed:
                if has_changed:
                    raise ModelError(f"{file.path.name} of {self._listing.name} changes all the time") from None
                logger.warning("%s is sent from elsewhere now; fetching it anew", file.path.name)
                has_changed = True
                tick(num_bytes(missing) - num_bytes(wanted))
                file.forget()
        self._verify(file, tick)

    def _attempt(self, file: SparseFile, wanted: Iterable[Span], tick: Tick) -> None:
        """One request, for the first run of bytes that are still missing."""
        (at, end), *_ = file.known.missing(wanted)
        with self._hub.open(self._listing, file.path.name, at, end, file.known.etag) as part:
            file.came_with(part.etag)
            for chunk in part.chunks:
                file.write(at, chunk)
                at += len(chunk)
                self._patience.progress()
                tick(len(chunk))
        if at < part.end:
            raise TryAgain(f"the answer ended {part.end - at} bytes early")

    def _verify(self, file: SparseFile, tick: Tick) -> None:
        """Where all of it is there, its hash must be right. What came in parts alone has no hash to check."""
        listed = self._listing.files[file.path.name]
        if file.known.is_verified or not file.known.is_complete(file.size) or not listed.sha256:
            return
        found = _sha256(file, tick)
        if found != listed.sha256:
            file.forget()
            words = f"{file.path} came with SHA-256 {found}, but the hub lists {listed.sha256}"
            raise ModelError(f"{words}: thrown away; start again to fetch it anew")
        file.verified()


def _check_hash(name: str, listed: HubFile, data: bytes) -> None:
    if listed.sha256 and hashlib.sha256(data).hexdigest() != listed.sha256:
        raise ModelError(f"{name} came with another SHA-256 than the hub lists; start again to fetch it anew")
    git_object = b"blob %d\0" % len(data) + data
    if listed.git_sha1 and hashlib.sha1(git_object, usedforsecurity=False).hexdigest() != listed.git_sha1:
        raise ModelError(f"{name} came with another git hash than the hub lists; start again to fetch it anew")


def _sha256(file: SparseFile, tick: Tick) -> str:
    digest = hashlib.sha256()
    with open(file.path, "rb") as stream:
        while chunk := stream.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
            tick(0)
    return digest.hexdigest()
