"""One process at a time in a folder of the cache, which the nodes of a machine share; the others wait and look on."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOK_EVERY_S = 0.2


class LockTimeout(OSError):
    """Another process holds the lock and doesn't get on."""


@contextmanager
def locked(path: Path, patience_s: float, sign: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Waits while `sign`, asked now and then, changes: whatever shows that the holder gets on. It may raise.

    A process that dies gives its locks back. Raises LockTimeout after `patience_s` without a change.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        seen, since = sign(), time.monotonic()
        while not _is_ours(file.fileno()):
            if (now := sign()) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > patience_s:
                raise LockTimeout(f"another process has held {path} for {patience_s:.0f} s and doesn't get on; end it")
            time.sleep(LOOK_EVERY_S)
        yield


def _is_ours(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
