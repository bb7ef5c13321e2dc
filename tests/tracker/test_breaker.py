from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tracker.breaker import LONGEST, Breaker, State, is_accused_enough

NOW = timezone.now()


def test_it_opens_for_ten_seconds_and_then_one_may_try() -> None:
    breaker = Breaker().opened(NOW, "it said nothing")
    assert (breaker.reason, breaker.openings) == ("it said nothing", 1)
    assert breaker.state(NOW + timedelta(seconds=9.9)) == State.OPEN
    assert breaker.state(NOW + timedelta(seconds=10)) == State.HALF_OPEN


def test_each_opening_in_a_row_doubles_the_time_up_to_five_minutes() -> None:
    breaker, now, seconds = Breaker(), NOW, []
    for _ in range(40):
        breaker = breaker.opened(now, "again")
        assert breaker.until is not None
        seconds.append((breaker.until - now).total_seconds())
        now = breaker.until
    assert seconds[:6] == [10, 20, 40, 80, 160, 300]
    assert seconds[-1] == LONGEST.total_seconds()


def test_what_fails_while_it_is_open_says_nothing_new() -> None:
    breaker = Breaker().opened(NOW, "first")
    assert breaker.opened(NOW + timedelta(seconds=5), "second") == breaker


def test_a_node_that_answers_may_work_and_its_next_failure_counts_in_the_same_row() -> None:
    breaker = Breaker().opened(NOW, "first").closed()
    assert (breaker.state(NOW), breaker.reason) == (State.CLOSED, "")
    assert breaker.opened(NOW, "second").until == NOW + timedelta(seconds=20)


@pytest.mark.parametrize(
    ("owners", "is_enough"), [([], False), ([1], False), ([1, 1, 1], False), ([1, 2], True), ([None, 1], True)]
)
def test_one_owner_alone_keeps_no_node_from_working(owners: list[int | None], is_enough: bool) -> None:
    assert is_accused_enough(owners) is is_enough
