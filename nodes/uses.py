"""Which models of the cache are in use: each process that works with one holds a lock on it, and those stay.

The locks are beside the models' folders, not in them: a folder can be taken away while nobody holds its lock, and
whoever comes next finds out before it counts on what it has seen there. A process that dies gives its locks back.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from nodes import storage

_LOCKS = ".in-use"


def models_folder() -> Path:
    return storage.cache_dir() / "models"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """With others that use it; waits while it is taken away. Nothing is held of folders outside the cache, nor in a
    cache that this user only reads."""
    with ExitStack() as holding:
        path = path.resolve()
        if path.parent == models_folder().resolve():
            with suppress(OSError):
                fcntl.flock(holding.enter_context(_lock_of(path)), fcntl.LOCK_SH)
        yield


@contextmanager
def free_to_take(path: Path) -> Iterator[bool]:
    """Whether nobody uses this folder of the cache, and nobody begins to before the block ends."""
    with _lock_of(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _lock_of(path: Path) -> IO[bytes]:
    """Open for writing, or one that another user has made, which can be locked as well."""
    locks = path.parent / _LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    try:
        return open(locks / path.name, "ab")
    except PermissionError:
        return open(locks / path.name, "rb")
