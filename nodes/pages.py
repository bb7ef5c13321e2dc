"""Puts weights into huge pages, because a token reads all of them.

In pages of 4 KiB the processor spends up to a third of that time looking up where the next page lies, most of all in a
virtual machine. malloc asks for huge pages only where an environment variable said so before the process began, and
a tensor seldom begins where one could. Here, whatever a block of code has allocated is moved together afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

HUGE_BYTES = 2 << 20
_COLLAPSE = 25  # madvise of Linux 6.1: now, and whatever the system's own setting is
_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\]|\[anon.*\])?")
_HUGE = re.compile(r"^AnonHugePages: *(\d+) kB", re.MULTILINE)
_MAPS, _TOTALS = Path("/proc/self/maps"), Path("/proc/self/smaps_rollup")


@contextlib.contextmanager
def in_huge_pages() -> Iterator[None]:
    """What is allocated inside lies in huge pages afterwards, as far as the system has them. Takes as long as copying
    it; changes nothing where the system isn't Linux."""
    before = _blocks()
    yield
    spans = list(_spans(_blocks() - before))
    num_moved = sum(_advise(span, _COLLAPSE) for span in spans)
    if not num_moved:
        for span in spans:
            _advise(span, getattr(mmap, "MADV_HUGEPAGE", 14))  # an older kernel does it later, bit by bit
    logger.info("%d MB lie in huge pages", huge_bytes() // 1_000_000)


def huge_bytes() -> int:
    """Bytes of this process in huge pages."""
    try:
        return int(_HUGE.findall(_TOTALS.read_text())[0]) * 1024
    except (OSError, IndexError):
        return 0


def _blocks() -> set[int]:
    """Numbers of the huge pages that would fit into the writable regions that aren't a file's."""
    try:
        maps = _MAPS.read_text()
    except OSError:
        return set()
    regions = [(int(found[1], 16), int(found[2], 16)) for found in map(_REGION.fullmatch, maps.splitlines()) if found]
    return {block for start, end in regions for block in range(-(-start // HUGE_BYTES), end // HUGE_BYTES)}


def _spans(blocks: set[int]) -> Iterator[range]:
    """Consecutive ones together."""
    ordered = sorted(blocks)
    starts = [block for block in ordered if block - 1 not in blocks]
    ends = [block + 1 for block in ordered if block + 1 not in blocks]
    yield from map(range, starts, ends)


def _advise(span: range, advice: int) -> bool:
    """Whether anything came of it: the system also reports an error where only a part could be done."""
    before = huge_bytes()
    libc = ctypes.CDLL(None, use_errno=True)
    place, size = ctypes.c_void_p(span.start * HUGE_BYTES), ctypes.c_size_t(len(span) * HUGE_BYTES)
    return libc.madvise(place, size, advice) == 0 or huge_bytes() > before
