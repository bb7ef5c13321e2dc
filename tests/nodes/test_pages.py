from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nodes.pages import HUGE_BYTES, _spans, huge_bytes, in_huge_pages

SIZE = 8 * HUGE_BYTES


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no huge pages")
def test_what_was_allocated_inside_lies_in_huge_pages_and_is_unchanged() -> None:
    before = huge_bytes()
    with in_huge_pages():
        tensor = torch.arange(SIZE // 8)
    assert huge_bytes() - before > SIZE / 2
    assert torch.equal(tensor, torch.arange(SIZE // 8))


def test_what_was_there_before_is_left_where_it_is() -> None:
    tensor = torch.ones(SIZE, dtype=torch.uint8)
    before = huge_bytes()
    with in_huge_pages():
        pass
    assert huge_bytes() - before < SIZE / 2
    assert len(tensor) == SIZE


def test_consecutive_pages_are_moved_together() -> None:
    assert list(_spans({3, 4, 5, 9, 11, 12})) == [range(3, 6), range(9, 10), range(11, 13)]
    assert list(_spans(set())) == []
