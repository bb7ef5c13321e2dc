"""Guesses by looking up, how many of them, and when they rest."""

from __future__ import annotations

import pytest

from nodes.drafts import MAX_DRAFTS, Drafter, PromptLookup, worth

CYCLE = [1, 2, 3, 4] * 3


def lookup(ids: list[int]) -> PromptLookup:
    made = PromptLookup()
    made.extend(ids)
    return made


def test_what_followed_the_last_tokens_before_is_found() -> None:
    found = lookup([1, 2, 3, 4, 5, 6, 1, 2, 3])
    assert found.find() == (3, 3)
    assert found.following(3, 3) == [4, 5, 6]


def test_the_longest_run_and_of_those_the_latest_is_taken() -> None:
    assert lookup([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]).find() == (3, 3)
    assert lookup([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3]).find() == (3, 7)
    assert lookup([5, 2, 3, 7, 1, 2, 3]).find() == (2, 3)


@pytest.mark.parametrize("ids", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_a_text_that_repeats_nothing_gives_nothing(ids: list[int]) -> None:
    assert lookup(ids).find() == (0, 0)


def test_a_repetition_that_reaches_the_end_goes_on() -> None:
    found = lookup([7, 1, 2, 1, 2, 1, 2])
    assert found.following(found.find()[1], 5) == [1, 2, 1, 2, 1]
    assert lookup([5, 5, 5, 5]).following(3, 3) == [5, 5, 5]


def test_tokens_one_by_one_are_found_like_those_at_once() -> None:
    made = PromptLookup()
    for token_id in CYCLE:
        made.extend([token_id])
    assert made.find() == lookup(CYCLE).find()


def warmed_up(most: int = 8, ids: list[int] = CYCLE, plain_s: float = 1.0) -> Drafter:
    """With the pace of plain steps known."""
    made = Drafter(most)
    made.extend(ids)
    for _ in range(2):
        made.propose(0)
        made.learn(0, [ids[0], *ids[1:4]][:1], plain_s)
        ids = ids[1:] + ids[:1]
    return made


def test_guesses_come_once_the_pace_of_plain_steps_is_known() -> None:
    made = Drafter(8)
    made.extend(CYCLE)
    assert made.propose(8) == []
    made.learn(0, [1], 1.0)
    assert made.propose(8) == []
    made.learn(0, [2], 1.0)
    assert made.propose(8)[0] == 3


def test_there_are_more_guesses_while_they_are_right_and_fewer_when_not() -> None:
    made, counts = warmed_up(), []
    following = [3, 4, 1, 2] * 50
    for _ in range(10):
        guesses = made.propose(8)
        counts.append(len(guesses))
        given, following = following[: len(guesses) + 1], following[len(guesses) + 1 :]
        made.learn(len(guesses), given, 1.2)
    assert counts == sorted(counts)
    assert counts[-1] == 8

    misleading = [token_id for number in range(20) for token_id in (1, 2, 100 + number)]
    for token_id in misleading:
        count = len(made.propose(8))
        made.learn(count, [token_id], 1.2)
    made.extend([1, 2])
    assert made.propose(8) == []


def test_no_more_are_guessed_than_there_is_room_for() -> None:
    made = warmed_up()
    for most in (0, -3, 1):
        assert len(made.propose(most)) == max(0, most)
    assert Drafter(0).propose(8) == []


def test_drafts_that_cost_more_than_they_save_rest_and_are_tried_again() -> None:
    made = warmed_up()
    drafted, following = [], [3, 4, 1, 2] * 200
    for _ in range(250):
        guesses = made.propose(8)
        drafted.append(len(guesses))
        given, following = following[: len(guesses) + 1], following[len(guesses) + 1 :]
        made.learn(len(guesses), given, 1.0 + 3.0 * len(guesses))  # each guess takes as long as three steps
    first_rest = drafted.index(0)
    assert 0 < first_rest < 10
    assert set(drafted[first_rest : first_rest + 100]) == {0}
    assert any(drafted[first_rest + 100 :])


def test_one_step_that_hung_does_not_end_drafts() -> None:
    made = warmed_up()
    made.learn(len(made.propose(8)), [3, 4], 1000.0)
    assert made.propose(8)


@pytest.mark.parametrize(("trust", "count"), [(0.0, 0), (0.19, 0), (0.3, 1), (0.7, 3), (1.0, MAX_DRAFTS)])
def test_as_many_are_worth_a_step_as_are_likely_to_be_right(trust: float, count: int) -> None:
    assert worth(trust) == count
