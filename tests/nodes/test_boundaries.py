from __future__ import annotations

from nodes.boundaries import Boundaries, Budget

WIDTH = 4  # bytes of a token here


def tokens(*numbers: int) -> bytes:
    return b"".join(bytes([number]) * WIDTH for number in numbers)


def test_what_was_sent_comes_out_as_it_was() -> None:
    kept = Boundaries(Budget(1000))
    kept.keep(2, 0, 3, tokens(1, 2, 3))
    kept.keep(2, 3, 1, tokens(4))

    assert kept.has(2, 4)
    assert not kept.has(2, 5)
    assert kept.get(2, 1, 4) == tokens(2, 3, 4)


def test_each_boundary_is_kept_by_itself() -> None:
    kept = Boundaries(Budget(1000))
    kept.keep(2, 0, 1, tokens(1))
    kept.keep(4, 0, 1, tokens(9))

    assert (kept.get(2, 0, 1), kept.get(4, 0, 1)) == (tokens(1), tokens(9))
    assert not kept.has(6, 1)


def test_a_step_replaces_what_was_kept_from_its_position_on() -> None:
    budget = Budget(1000)
    kept = Boundaries(budget)
    kept.keep(2, 0, 4, tokens(1, 2, 3, 4))
    kept.keep(2, 2, 1, tokens(7))

    assert kept.get(2, 0, 3) == tokens(1, 2, 7)
    assert not kept.has(2, 4)
    assert budget.num_bytes == 3 * WIDTH


def test_what_doesnt_fit_isnt_kept_and_neither_is_what_follows() -> None:
    budget = Budget(5 * WIDTH)
    kept, other = Boundaries(budget), Boundaries(budget)
    other.keep(2, 0, 2, tokens(8, 9))
    kept.keep(2, 0, 3, tokens(1, 2, 3))
    kept.keep(2, 3, 1, tokens(4))
    kept.keep(2, 4, 1, tokens(5))

    assert not kept.has(2, 1)
    assert other.get(2, 0, 2) == tokens(8, 9)
    assert budget.num_bytes == 2 * WIDTH


def test_from_the_beginning_it_is_kept_again() -> None:
    budget = Budget(2 * WIDTH)
    kept = Boundaries(budget)
    kept.keep(2, 0, 3, tokens(1, 2, 3))
    kept.keep(2, 0, 2, tokens(1, 2))

    assert kept.has(2, 2)


def test_what_is_no_boundary_any_more_is_given_back() -> None:
    budget = Budget(1000)
    kept = Boundaries(budget)
    kept.keep(2, 0, 1, tokens(1))
    kept.keep(4, 0, 1, tokens(1))
    kept.only([4])

    assert budget.num_bytes == WIDTH
    assert not kept.has(2, 1)
    kept.only([])
    assert budget.num_bytes == 0


def test_without_a_budget_nothing_is_kept() -> None:
    kept = Boundaries(Budget(0))
    kept.keep(2, 0, 1, tokens(1))

    assert not kept.has(2, 1)
    assert kept.has(2, 0)
