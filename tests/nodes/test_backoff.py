from __future__ import annotations

from nodes.backoff import Backoff


def test_its_bound_doubles_up_to_the_most() -> None:
    backoff = Backoff(1, 10, draw=lambda: 1.0)

    assert [backoff.next_s() for _ in range(6)] == [1, 2, 4, 8, 10, 10]


def test_it_draws_from_zero_so_that_nodes_spread() -> None:
    draws = iter([0.0, 0.5, 0.25])
    backoff = Backoff(1, 10, draw=lambda: next(draws))

    assert [backoff.next_s() for _ in range(3)] == [0, 1, 1]


def test_after_a_reset_it_begins_anew() -> None:
    backoff = Backoff(1, 10, draw=lambda: 1.0)
    backoff.next_s()
    backoff.next_s()

    backoff.reset()

    assert backoff.next_s() == 1


def test_it_stays_at_the_most_for_as_long_as_it_takes() -> None:
    backoff = Backoff(1, 30, draw=lambda: 1.0)

    assert {backoff.next_s() for _ in range(2000)} == {1, 2, 4, 8, 16, 30}
