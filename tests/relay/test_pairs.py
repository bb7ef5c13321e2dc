"""Two ends of a pair, and a road between them that may lose, double or hold what is said."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import pytest

from relay import pairs
from relay.pairs import ACKNOWLEDGED_TICKS, MESSAGE_BYTES, WINDOW_BYTES, Message, Pair, Received

KIB = 1024


def messages(pair: Pair) -> list[Message]:
    """All that the pair has to say now."""
    said = []
    while message := pair.next_message():
        said.append(message)
    return said


def hear(pair: Pair, said: list[Message]) -> list[bytes]:
    """The items that came whole; nothing may fail."""
    received = [pair.receive(message) for message in said]
    assert not any(it.failure for it in received)
    return [item for it in received for item in it.items]


@pytest.fixture
def a() -> Pair:
    return Pair()


@pytest.fixture
def b() -> Pair:
    return Pair()


def test_small_items_travel_in_one_message_in_order(a: Pair, b: Pair) -> None:
    for item in (b"1", b"2", b"3"):
        assert a.offer(item)
    [message] = messages(a)
    assert message == Message(1, 1, 0, (b"1", b"2", b"3"))
    assert hear(b, [message]) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("size", [0, 1, MESSAGE_BYTES - 1, MESSAGE_BYTES, MESSAGE_BYTES + 1, 1024 * KIB, 1030 * KIB])
def test_a_large_item_travels_in_pieces_below_64_kib(a: Pair, b: Pair, size: int) -> None:
    item = os.urandom(size)
    a.offer(b"before")
    a.offer(item)
    a.offer(b"after")
    said = messages(a)
    assert all(sum(map(len, message.items)) <= MESSAGE_BYTES for message in said)
    assert hear(b, said) == [b"before", item, b"after"]


def test_what_is_acknowledged_leaves_the_window(a: Pair, b: Pair) -> None:
    a.offer(bytes(300 * KIB))
    hear(b, messages(a))
    [acknowledgement] = messages(b)
    assert (acknowledgement.number, acknowledgement.items) == (0, ())
    hear(a, [acknowledgement])
    assert a.outstanding_bytes < 64 * KIB  # the last pieces wait for the next tick
    b.tick()
    hear(a, messages(b))
    assert a.outstanding_bytes == 0


def test_an_acknowledgement_rides_on_what_is_said_anyway(a: Pair, b: Pair) -> None:
    a.offer(b"question")
    hear(b, messages(a))
    b.offer(b"answer")
    [answer] = messages(b)
    assert (answer.number, answer.acknowledged) == (1, 1)
    hear(a, [answer])
    assert a.outstanding_bytes == 0


def test_over_the_window_there_is_no_room_and_answers_wait(a: Pair, b: Pair) -> None:
    piece = bytes(1024 * KIB)
    for _ in range(6):
        assert a.offer(piece)
    assert not a.has_room(1)
    first = messages(a)
    assert WINDOW_BYTES <= sum(len(item) for message in first for item in message.items) < WINDOW_BYTES + 64 * KIB
    assert a.next_message() is None
    come = hear(b, first)
    hear(a, messages(b))
    assert [*come, *hear(b, messages(a))] == [piece] * 6
    b.tick()
    hear(a, messages(b))
    assert a.has_room(1024 * KIB)


def test_what_waits_is_bounded(a: Pair) -> None:
    piece = bytes(1024 * KIB)
    taken = 0
    while a.offer(piece):
        taken += 1
    assert taken == pairs.MAX_WAITING_BYTES // (1024 * KIB + pairs.ITEM_OVERHEAD_BYTES)
    assert a.offer(b"why that was refused")
    more = 1
    while a.offer(bytes(pairs.SMALL_BYTES)):
        more += 1
    assert more < 1000


def test_a_gap_fails_everything_at_both_ends_and_both_go_on(a: Pair, b: Pair) -> None:
    for item in (b"1", b"2"):
        a.offer(item)
        lost_or_not = messages(a)
    b.offer(b"never arrives")
    assert "lost" in b.receive(lost_or_not[0]).failure
    assert not b.has_room(1)
    [probe] = messages(b)
    assert (probe.epoch, probe.number, probe.is_probe) == (2, 0, True)
    assert a.receive(probe).failure
    assert hear(b, messages(a)) == []
    for one, other in ((a, b), (b, a)):
        assert one.has_room(1)
        one.offer(b"again")
        assert hear(other, messages(one)) == [b"again"]


def test_a_second_without_acknowledgement_fails_everything_once(a: Pair) -> None:
    a.offer(b"into the dark")
    messages(a)
    failures = [why for why in (a.tick() for _ in range(4 * ACKNOWLEDGED_TICKS)) if why]
    assert failures == ["the other process acknowledged nothing for 1 s"]


def test_what_could_not_even_be_sent_fails_as_what_was_not_acknowledged(a: Pair) -> None:
    a.offer(b"the road is blocked")
    assert any(a.tick() for _ in range(2 * ACKNOWLEDGED_TICKS))


def test_a_long_backlog_fails_nothing_while_it_moves(a: Pair, b: Pair) -> None:
    for _ in range(15):
        a.offer(bytes(1024 * KIB))
    for _ in range(3 * ACKNOWLEDGED_TICKS):
        assert not a.tick()
        for _ in range(8):
            if message := a.next_message():
                b.receive(message)
        b.tick()
        hear(a, messages(b))


def test_nothing_fails_while_nothing_is_said(a: Pair) -> None:
    assert not any(a.tick() for _ in range(100))
    assert a.next_message() is None


def test_a_doubtful_pair_only_probes_until_it_is_heard(a: Pair, b: Pair) -> None:
    a.fail("the test says so")
    assert not a.offer(b"too early")
    assert [it.is_probe for it in messages(a)] == [True]
    probes = []
    for _ in range(20):
        a.tick()
        probes += messages(a)
    assert [it.number for it in probes] == [0, 0, 0, 0]
    assert b.receive(probes[-1]).failure
    hear(a, messages(b))
    assert a.offer(b"heard")
    assert hear(b, messages(a)) == [b"heard"]


def test_what_is_left_of_an_earlier_epoch_is_ignored_and_answered_with_the_later_one(a: Pair, b: Pair) -> None:
    a.offer(b"old")
    late = messages(a)
    b.fail("the test says so")
    messages(b)
    assert b.receive(late[0]) == Received()
    [told] = messages(b)
    assert told.epoch == 2


def test_both_failing_at_once_find_each_other(a: Pair, b: Pair) -> None:
    a.fail("here")
    b.fail("there")
    probes = messages(a), messages(b)
    assert hear(b, probes[0]) == hear(a, probes[1]) == []
    a.offer(b"1")
    b.offer(b"2")
    assert (hear(b, messages(a)), hear(a, messages(b))) == ([b"1"], [b"2"])


def test_an_end_that_has_forgotten_the_other_catches_up(a: Pair, b: Pair) -> None:
    """As after a process was given up for dead and comes back: one side begins at one, the other is far ahead."""
    for _ in range(3):
        a.fail("earlier")
    afresh = Pair()
    afresh.offer(b"lost on the way")
    for message in messages(afresh):
        a.receive(message)
    for message in messages(a):
        assert afresh.receive(message).failure
    hear(a, messages(afresh))
    a.offer(b"found")
    assert hear(afresh, messages(a)) == [b"found"]


def test_a_second_copy_changes_nothing(a: Pair, b: Pair) -> None:
    a.offer(b"once")
    [message] = messages(a)
    assert hear(b, [message, message]) == [b"once"]


def test_an_item_without_end_is_refused(a: Pair) -> None:
    for number in range(1, 30):
        received = a.receive(Message(1, number, 0, (bytes(MESSAGE_BYTES),), is_cut=True))
        if received.failure:
            break
    assert "too much" in received.failure
    assert number <= pairs.MAX_ITEM_BYTES // MESSAGE_BYTES + 1


class Road:
    """Two ends, what each was given and what came, by epoch; a message is lost now and then."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ends = Pair(), Pair()
        self.given: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)  # (receiver, epoch)
        self.came: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
        self.travelling: list[list[Message]] = [[], []]

    def offer(self, who: int, number: int) -> None:
        item = b"%d" % number + bytes(self.chance.choice([0, 10, 100 * KIB]))
        if self.ends[who].offer(item):
            self.given[1 - who, self.ends[who].epoch].append(item)

    def say(self, who: int) -> None:
        self.travelling[1 - who] += messages(self.ends[who])

    def hear_one(self, who: int, loss: float) -> None:
        if self.travelling[who]:
            message = self.travelling[who].pop(0)
            if self.chance.random() >= loss:
                received = self.ends[who].receive(message)
                self.came[who, self.ends[who].epoch].extend(received.items)

    def rest(self) -> None:
        """Long enough for every probe, with nothing lost."""
        for _ in range(pairs.PROBE_TICKS + 2):
            for who in (0, 1):
                self.ends[who].tick()
                self.say(who)
                while self.travelling[1 - who]:
                    self.hear_one(1 - who, loss=0)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_road_does_items_come_whole_and_in_order_and_the_ends_agree_again(seed: int) -> None:
    road = Road(seed)
    for number in range(600):
        who, dice = road.chance.randrange(2), road.chance.random()
        if dice < 0.4:
            road.offer(who, number)
        elif dice < 0.6:
            road.say(who)
        elif dice < 0.9:
            road.hear_one(who, loss=0.03)
        else:
            road.ends[who].tick()
    for key, items in road.came.items():
        assert items == road.given[key][: len(items)]
    road.rest()
    assert road.ends[0].epoch == road.ends[1].epoch
    assert not road.ends[0].is_doubtful
    assert not road.ends[1].is_doubtful
