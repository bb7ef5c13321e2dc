from __future__ import annotations

import pytest

from nodes.timings import NUM_AT_ONCE, NUM_LAST, TELL_S, Percentiles, StepLog
from tests.nodes.clocks import Time


def test_percentiles_are_those_of_all_steps_within_a_bucket() -> None:
    percentiles = Percentiles()
    for number in range(100 * (NUM_AT_ONCE // 50)):
        percentiles.add((1.0 + number % 100, 5.0, 0.0))
    told = percentiles.as_dict()
    assert told["compute_p50_ms"] == pytest.approx(50, rel=0.04)
    assert told["compute_p95_ms"] == pytest.approx(95, rel=0.04)
    assert told["network_p50_ms"] == told["network_p95_ms"] == pytest.approx(5, rel=0.022)
    assert told["queue_p50_ms"] == told["queue_p95_ms"] == 0


def test_asking_in_between_changes_nothing() -> None:
    asked, quiet = Percentiles(), Percentiles()
    for ms in range(1, 40):
        for percentiles in (asked, quiet):
            percentiles.add((float(ms), ms / 3, ms / 7))
        asked.as_dict()
    assert asked.as_dict() == quiet.as_dict()


def test_without_a_decode_step_there_are_none() -> None:
    assert Percentiles().as_dict() == {}


@pytest.mark.parametrize(("ms", "told"), [(-1.0, 0), (0.0, 0), (1e-4, 0), (0.001, 0.001), (1e9, 1e7)])
def test_times_beyond_all_measure_are_told_as_the_most_or_nothing(ms: float, told: float) -> None:
    percentiles = Percentiles()
    percentiles.add((ms, ms, ms))
    assert percentiles.as_dict()["queue_p95_ms"] == pytest.approx(told, rel=0.025)


def test_of_many_steps_the_last_are_told() -> None:
    clock = Time()
    log = StepLog(clock)
    for number in range(NUM_LAST + 5):
        clock.now += 0.010
        log.add(number, 2, 7 + number, 1, clock.now, ((1.004, 0.0, 0.5), (2.0, 3.0, 0.0)))
    told = log.as_list()
    assert [step["step"] for step in told] == list(range(5, NUM_LAST + 5))
    assert told[0] == {
        "step": 5,
        "epoch": 2,
        "position": 12,
        "tokens": 1,
        "at_ms": 60.0,
        "hops": [[1.0, 0.0, 0.5], [2.0, 3.0, 0.0]],
    }


def test_it_is_told_at_most_each_second_and_not_before_there_is_something() -> None:
    clock = Time()
    log = StepLog(clock)
    clock.now += TELL_S
    assert not log.is_due(), "nothing has been worked"
    log.add(1, 0, 0, 5, clock.now, ((1.0, 0.0, 0.0),))
    assert [log.is_due(), log.is_due()] == [True, False]
    clock.now += TELL_S / 2
    assert not log.is_due()
    clock.now += TELL_S / 2
    assert log.is_due()
