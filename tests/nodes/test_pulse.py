from __future__ import annotations

import math

import pytest

from nodes.pulse import Pulse
from relay.wire import MAX_BYTES_IN_FLIGHT, PING_EACH_BYTES
from tests.nodes.clocks import Time


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def pulse(time: Time) -> Pulse:
    return Pulse(10.0, time)


def test_a_ping_is_due_each_period(pulse: Pulse, time: Time) -> None:
    assert pulse.ping_in_s() == 10
    time.now += 7
    assert pulse.ping_in_s() == 3
    time.now += 4
    assert pulse.ping_in_s() == 0
    pulse.ping()
    assert pulse.ping_in_s() == 10


def test_a_ping_is_due_after_each_mib(pulse: Pulse) -> None:
    pulse.sent(PING_EACH_BYTES - 1)
    assert pulse.ping_in_s() > 0
    pulse.sent(1)
    assert pulse.ping_in_s() == 0
    pulse.ping()
    assert pulse.ping_in_s() == 10


def test_what_was_sent_before_an_answered_ping_is_owed_no_more(pulse: Pulse) -> None:
    pulse.sent(1000)
    first = pulse.ping()
    pulse.sent(200)
    assert pulse.owed_bytes == 1200
    pulse.pong(first)
    assert pulse.owed_bytes == 200


def test_an_answer_speaks_for_the_pings_before_it_and_an_unknown_one_for_none(pulse: Pulse) -> None:
    pulse.sent(100)
    first = pulse.ping()
    pulse.sent(100)
    second = pulse.ping()
    pulse.pong(second + 7)
    assert pulse.owed_bytes == 200
    pulse.pong(second)
    assert pulse.owed_bytes == 0
    pulse.pong(first)
    assert pulse.owed_bytes == 0
    assert pulse.dies_at == math.inf


def test_a_body_stays_owed_until_its_request_is_answered_and_is_counted_once(pulse: Pulse) -> None:
    pulse.asked("ask-1", 1000)
    pulse.sent(1100)
    assert pulse.owed_bytes == 1100
    pulse.pong(pulse.ping())
    assert pulse.owed_bytes == 1000
    pulse.settled("ask-1")
    assert pulse.owed_bytes == 0


def test_a_request_answered_before_the_ping_owes_what_was_sent_only(pulse: Pulse) -> None:
    pulse.asked("ask-1", 1000)
    pulse.sent(1100)
    pulse.settled("ask-1")
    assert pulse.owed_bytes == 1100
    pulse.pong(pulse.ping())
    assert pulse.owed_bytes == 0


def test_eight_unanswered_bodies_of_a_mib_fill_it(pulse: Pulse) -> None:
    for number in range(8):
        pulse.asked(f"ask-{number}", PING_EACH_BYTES)
        pulse.sent(PING_EACH_BYTES)
        pulse.pong(pulse.ping())
    assert pulse.owed_bytes == MAX_BYTES_IN_FLIGHT


def test_without_an_answer_it_is_dead_within_two_periods_of_the_last_one(pulse: Pulse, time: Time) -> None:
    pulse.pong(pulse.ping())
    time.now += 10
    pulse.ping()
    assert pulse.dies_at - time.now == 5
    time.now += 4.9
    assert not pulse.is_dead
    time.now += 0.1
    assert pulse.is_dead


def test_while_no_question_is_open_it_lives(pulse: Pulse, time: Time) -> None:
    time.now += 1000
    assert not pulse.is_dead


def test_a_ping_that_could_be_written_late_only_still_has_its_time(pulse: Pulse, time: Time) -> None:
    time.now += 30  # a message before it took so long
    pulse.ping()
    time.now += 4.9
    assert not pulse.is_dead
    time.now += 0.2
    assert pulse.is_dead


def test_each_answer_gives_the_open_ones_more_time(pulse: Pulse, time: Time) -> None:
    """A slow way out: every PING is answered long after it went, but they are answered one by one."""
    numbers = [pulse.ping() for _ in range(4)]
    for number in numbers:
        time.now += 12
        assert not pulse.is_dead
        pulse.pong(number)
