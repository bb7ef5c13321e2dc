"""Moves a process's memory into huge pages. Standard library only: nodes use it, too.

A token reads all weights of a node, and by the time it asks the next hop, what its own threads and the relay's need has
left the caches of the processor. In pages of 4 KiB a fifth to a third of all that reading is looking up where the next
page lies, most of all in a virtual machine. malloc asks for huge pages only where an environment variable said so
before the process began, and most of what it hands out is too small to begin where one could.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

HUGE_BYTES = 2 << 20
MOST_BYTES = 128 * HUGE_BYTES  # moved at once, so that a signal needn't wait for the whole of a large model
_COLLAPSE = 25  # madvise of Linux 6.1: now, and whatever the system's own setting is
_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\]|\[anon.*\])?")
_HUGE = re.compile(r"^AnonHugePages: *(\d+) kB", re.MULTILINE)
_OURSELVES = Path("/proc/self")


def use_huge_pages() -> int:
    """Moves what this process has allocated so far, as far as the system has room: as slow as copying it. The bytes
    that lie in huge pages then; 0 where there are none, as on another system than Linux."""
    try:
        maps = (_OURSELVES / "maps").read_text()
    except OSError:
        return 0
    regions = list(_regions(maps))
    for start, end in regions:
        _advise(start, end, _COLLAPSE)  # which also reports an error when it could do a part only
    if not (num_bytes := huge_bytes()):
        for start, end in regions:
            _advise(start, end, getattr(mmap, "MADV_HUGEPAGE", 14))  # older systems do it later, bit by bit
    return num_bytes


def huge_bytes() -> int:
    """Bytes of this process in huge pages."""
    try:
        found = _HUGE.search((_OURSELVES / "smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _regions(maps: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the huge pages that fit into each writable region that isn't a file's, in pieces."""
    for found in filter(None, map(_REGION.fullmatch, maps.splitlines())):
        start, end = -(-int(found[1], 16) // HUGE_BYTES) * HUGE_BYTES, int(found[2], 16) // HUGE_BYTES * HUGE_BYTES
        yield from ((piece, min(end, piece + MOST_BYTES)) for piece in range(start, end, MOST_BYTES))


def _advise(start: int, end: int, advice: int) -> None:
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
