"""Which steps run next, without any engine."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.schedule import COMPANY_S, GAP_SHARE, GATHER_SHARE, LEAST_GAP_S, Schedule

WHOLE, HALF = (0, 6), (0, 3)


@dataclass(frozen=True)
class Item:
    session: str
    number: int = 0
    num_tokens: int = 1
    hop: tuple[int, int] = WHOLE

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == 1


def waiting(*items: Item, max_rows: int = 32, max_tokens: int = 128) -> Schedule[Item]:
    schedule: Schedule[Item] = Schedule(max_rows, max_tokens)
    for item in items:
        schedule.add(item, 0.0)
    return schedule


def names(items: list[Item]) -> str:
    return "".join(item.session for item in items)


def all_of(schedule: Schedule[Item]) -> list[str]:
    """The forwards until nothing waits."""
    forwards = []
    while len(schedule):
        forwards.append(names(schedule.next()))
    return forwards


def test_decode_steps_of_all_sessions_run_together() -> None:
    assert all_of(waiting(Item("a"), Item("b"), Item("c"))) == ["abc"]


def test_nothing_waits_then_nothing_runs() -> None:
    assert waiting().next() == []


def test_two_steps_of_a_session_never_run_together_and_stay_in_order() -> None:
    schedule = waiting(Item("a", 1), Item("a", 2), Item("b", 1), Item("a", 3))
    ran = [schedule.next() for _ in range(3)]

    assert [names(items) for items in ran] == ["ab", "a", "a"]
    assert [items[0].number for items in ran] == [1, 2, 3]


def test_a_part_of_a_prompt_runs_alone() -> None:
    assert all_of(waiting(Item("a", num_tokens=16), Item("b", num_tokens=16))) == ["a", "b"]


def test_prompts_and_decode_steps_take_turns() -> None:
    prompts = [Item("p", number, 16) for number in range(3)] + [Item("q", 0, 16)]
    decodes = [Item(session, number) for number in range(3) for session in "ab"]

    assert all_of(waiting(*prompts, *decodes)) == ["ab", "p", "ab", "q", "ab", "p", "p"]


def test_steps_of_other_layers_run_in_a_forward_of_their_own() -> None:
    schedule = waiting(Item("a"), Item("b", hop=HALF), Item("c"), Item("d", hop=HALF))

    assert all_of(schedule) == ["ac", "bd"]


def test_a_forward_has_at_most_so_many_sessions() -> None:
    assert all_of(waiting(*map(Item, "abcde"), max_rows=2)) == ["ab", "cd", "e"]


def test_a_forward_has_at_most_so_many_tokens_but_one_step_always_fits() -> None:
    @dataclass(frozen=True)
    class Drafting(Item):
        @property
        def is_decode(self) -> bool:
            return True

    schedule = waiting(*(Drafting(name, num_tokens=size) for name, size in (("a", 3), ("b", 2), ("c", 1), ("d", 9))))
    schedule._max_tokens = 4

    assert all_of(schedule) == ["ac", "b", "d"]


def test_a_session_that_sends_much_at_once_waits_for_its_turn_like_others() -> None:
    schedule = waiting(*(Item("a", number, 16) for number in range(5)), Item("b", 0, 16))

    assert all_of(schedule) == ["a", "b", "a", "a", "a", "a"]


ITEMS = st.builds(
    Item,
    session=st.sampled_from("abcdefgh"),
    num_tokens=st.sampled_from([1, 1, 1, 16]),
    hop=st.sampled_from([WHOLE, WHOLE, HALF]),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(ITEMS, st.none()), max_size=60))
def test_nobody_starves_whatever_comes(events: list[Item | None]) -> None:
    """None: a turn."""
    schedule: Schedule[Item] = Schedule(max_rows=3, max_tokens=128)
    waits: dict[str, list[Item]] = defaultdict(list)
    ran: list[tuple[bool, bool]] = []
    for event in [*events, *[None] * len(events)]:
        if event is not None:
            schedule.add(event, 0.0)
            waits[event.session].append(event)
            continue
        items = schedule.next()
        had_both = len({line[0].is_decode for line in waits.values() if line}) == 2
        assert bool(items) == any(waits.values())
        for item in items:
            assert waits[item.session].pop(0) is item, "a session's steps stay in order"
        if items:
            assert len({item.session for item in items}) == len(items) <= 3
            assert len({item.hop for item in items}) == 1
            assert len(items) == 1 or all(item.is_decode for item in items)
            kind = items[0].is_decode
            assert not (had_both and ran and ran[-1] == (kind, True)), "one kind ran twice while the other waited"
            ran.append((kind, had_both))
    assert not any(waits.values())


class Clock:
    """Two sessions that are answered at 1.0, after a forward of a tenth of a second."""

    def __init__(self) -> None:
        self.schedule = waiting(Item("a"), Item("b"))
        self.schedule.ran(self.schedule.next(), 1.0, 0.1)


def test_who_is_alone_never_waits_for_company() -> None:
    schedule = waiting(Item("a"))
    schedule.ran(schedule.next(), 1.0, 0.1)
    schedule.add(Item("a"), 1.001)

    assert schedule.patience_s(1.001) == 0


def test_the_first_to_come_back_waits_a_moment_for_the_others() -> None:
    schedule = Clock().schedule
    assert schedule.patience_s(1.0) == 0  # nothing waits yet
    schedule.add(Item("a"), 1.001)

    assert schedule.patience_s(1.001) == pytest.approx(max(LEAST_GAP_S, GAP_SHARE * 0.1))
    assert schedule.patience_s(1.1) <= 0
    schedule.add(Item("b"), 1.002)
    assert schedule.patience_s(1.002) == 0


def test_a_step_that_came_during_the_forward_waits_for_those_that_were_in_it() -> None:
    schedule = waiting(Item("a"))
    running = schedule.next()
    schedule.add(Item("b"), 0.95)
    schedule.ran(running, 1.0, 0.1)

    assert schedule.patience_s(1.0) > 0


def test_waiting_for_many_has_an_end() -> None:
    schedule = waiting(*map(Item, "abcdefgh"))
    schedule.ran(schedule.next(), 1.0, 0.02)
    for number, session in enumerate("abcdefg"):
        schedule.add(Item(session), 1.0 + number * 0.0009)

    assert schedule.patience_s(1.0063) <= 0 < GATHER_SHARE * 0.02


def test_nobody_waits_for_a_session_that_left_or_that_is_lost() -> None:
    closed, lost = Clock().schedule, Clock().schedule
    for schedule in (closed, lost):
        schedule.add(Item("a"), 1.001)
    closed.forget("b")
    assert closed.patience_s(1.001) == 0

    lost.add(Item("c"), 1.0 + COMPANY_S + 0.3)
    assert lost.patience_s(1.0 + COMPANY_S + 0.3) == 0


def test_nobody_waits_while_a_prompt_does() -> None:
    schedule = Clock().schedule
    schedule.add(Item("a"), 1.001)
    schedule.add(Item("p", num_tokens=16), 1.001)

    assert schedule.patience_s(1.001) == 0
