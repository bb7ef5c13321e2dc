from __future__ import annotations

from pathlib import Path

import pytest

from relay.pages import HUGE_BYTES, MOST_BYTES, _regions, huge_bytes, use_huge_pages

MIB = 1 << 20


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no huge pages")
def test_what_has_been_allocated_lies_in_huge_pages_and_is_unchanged() -> None:
    before = huge_bytes()
    data = bytearray(range(256)) * (8 * HUGE_BYTES // 256)
    assert use_huge_pages() - before > 4 * HUGE_BYTES
    assert data == bytearray(range(256)) * (8 * HUGE_BYTES // 256)


def test_only_whole_huge_pages_of_private_writable_memory_are_moved() -> None:
    maps = f"""\
{3 * MIB:x}-{9 * MIB:x} rw-p 00000000 00:00 0
{16 * MIB:x}-{18 * MIB:x} rw-p 00000000 00:00 0                          [heap]
{21 * MIB:x}-{23 * MIB:x} rw-p 00000000 00:00 0
{32 * MIB:x}-{48 * MIB:x} r--p 00000000 00:00 0
{48 * MIB:x}-{64 * MIB:x} rw-s 00000000 00:01 17                         /dev/zero
{64 * MIB:x}-{80 * MIB:x} rw-p 00001000 fe:00 260131                     /usr/lib/libpython3.so
{96 * MIB:x}-{98 * MIB:x} rw-p 00000000 00:00 0                          [stack]
"""
    assert list(_regions(maps)) == [(4 * MIB, 8 * MIB), (16 * MIB, 18 * MIB)]


def test_a_large_region_is_moved_piece_by_piece() -> None:
    maps = f"0-{MOST_BYTES + 2 * HUGE_BYTES:x} rw-p 00000000 00:00 0"
    assert list(_regions(maps)) == [(0, MOST_BYTES), (MOST_BYTES, MOST_BYTES + 2 * HUGE_BYTES)]
