from __future__ import annotations

import threading
import time

import pytest

from nodes.deadline import LOOK_S, Cancelled, Deadline, DeadlineOver


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


def test_it_is_over_as_soon_as_nobody_wants_the_answer() -> None:
    cancelled = threading.Event()
    deadline = Deadline.after(60).unless(cancelled)
    share = deadline.at_most(10)
    assert deadline.turn_s() == share.turn_s() == LOOK_S
    assert not share.is_over
    cancelled.set()

    for one in (deadline, share):
        assert one.is_over
        assert one.left_s() == 0
        with pytest.raises(Cancelled):
            one.check()


def test_nobody_looks_again_and_again_where_nothing_can_be_cancelled() -> None:
    assert Deadline.after(60).turn_s() > 59
