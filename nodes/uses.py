"""Which models of the cache are in use: each process that works with one holds a lock on it, and those stay.

The locks are beside the models' folders, not in them: a folder can be taken away while nobody holds its lock, and
whoever comes next finds out before it counts on what it has seen there. A process that dies gives its locks back.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from nodes import storage

_LOCKS = ".in-use"


def models_folder() -> Path:
    return storage.cache_dir() / "models"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """With others that use it; waits while it is taken away. Of folders outside the cache there is nothing to hold."""
    path = path.resolve()
    if path.parent != models_folder().resolve():
        yield
        return
    with _lock_of(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
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
    locks = path.parent / _LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    return open(locks / path.name, "ab")
