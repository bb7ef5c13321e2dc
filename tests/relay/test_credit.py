from __future__ import annotations

import pytest

from relay import wire
from relay.credit import FRAME_BYTES, OVERHEAD_BYTES, Credit, weight_of
from relay.wire import Chunk, Code, End, Error, Ping, Pong, Request, Response

PERIOD_S = 10.0


@pytest.mark.parametrize(
    ("frame", "weight"),
    [
        (Request("1", "POST", "/forward", {}, b"body"), OVERHEAD_BYTES + 4),
        (Response("1", 200, {}, b"body"), OVERHEAD_BYTES + 4),
        (Chunk("1", b"body"), FRAME_BYTES + 4),
        (End("1"), FRAME_BYTES),
        (Error("1", Code.BUSY, ""), FRAME_BYTES),
        (Ping(1), 0),
        (Pong(1), 0),
    ],
)
def test_a_frame_weighs_its_body_and_what_stands_around_it(frame: wire.Frame, weight: int) -> None:
    assert weight_of(frame) == weight


def test_a_pong_proves_all_that_was_sent_before_its_ping_and_nothing_later() -> None:
    credit = Credit(now=0)
    credit.sent = 100
    ping = credit.ping(7, now=1)
    credit.sent = 150
    assert (ping, credit.unread) == (Ping(7), 150)
    assert credit.pong(7, now=1.25)
    assert (credit.unread, credit.rtt_s) == (50, 0.25)


def test_the_last_pong_speaks_for_those_before_it_and_an_unknown_one_for_none() -> None:
    credit = Credit(now=0)
    for number in (1, 2, 3):
        credit.sent += 100
        credit.ping(number, now=number)
    assert not credit.pong(4, now=4)
    assert credit.unread == 300
    assert credit.pong(2, now=4)
    assert credit.unread == 100
    assert not credit.pong(1, now=4), "already answered"
    assert credit.pong(3, now=5)
    assert credit.unread == 0


def test_a_ping_is_due_after_each_mebibyte() -> None:
    credit = Credit(now=0)
    credit.sent = wire.PING_EACH_BYTES - 1
    assert not credit.is_ping_due()
    credit.sent += 1
    assert credit.is_ping_due()
    credit.ping(1, now=0)
    assert not credit.is_ping_due()


def test_silence_is_a_stall_only_while_a_ping_waits_and_within_two_periods() -> None:
    credit = Credit(now=0)
    assert not credit.is_stalled(1000, PERIOD_S)
    credit.ping(1, now=PERIOD_S)
    assert not credit.is_stalled(2 * PERIOD_S - 0.1, PERIOD_S)
    assert credit.is_stalled(2 * PERIOD_S, PERIOD_S)


def test_who_reads_slowly_but_reads_is_not_stalled() -> None:
    """A PING a mebibyte, each answered late: the oldest one is always older than a period."""
    credit = Credit(now=0)
    for number in range(20):
        credit.ping(number, now=0)
    for number in range(20):
        now = 14.0 * (number + 1)
        assert not credit.is_stalled(now, PERIOD_S)
        assert credit.pong(number, now)
