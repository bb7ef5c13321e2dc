from __future__ import annotations

import time

import pytest

from nodes.deadline import Deadline, DeadlineOver


def test_it_never_has_less_than_no_time_left() -> None:
    over = Deadline(time.monotonic() - 5)

    assert over.left_s() == 0
    assert over.is_over
    with pytest.raises(DeadlineOver):
        over.check()


def test_the_sooner_of_two_counts() -> None:
    later = Deadline.after(60)

    assert 9 < later.at_most(10).left_s() <= 10
    assert later.at_most(90) == later
