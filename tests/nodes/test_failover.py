from __future__ import annotations

import functools
import itertools
import time
from dataclasses import replace
from typing import Any

import pytest

from nodes.deadline import Deadline, DeadlineOver
from nodes.downstream import HopFailed, HopRefused
from nodes.failover import FAILOVER_WAIT_S, LEAST_LEFT_S
from nodes.reroute import MOVE, NoAnswer, NotNow, NotOurs, Refused
from nodes.sessions import Stale
from relay import headers as names
from relay import wire
from tests.nodes.clocks import Time
from tests.nodes.routes import PROMPT, SESSION, Make, Route, peer_id, refusal

WHOLE = [71, 72, 73, 74, 75, 76]


@pytest.fixture(params=[0, 1_000_000], ids=["tokens", "activations"])
def route(route: Make, request: pytest.FixtureRequest) -> Make:
    """What a replacement is filled from changes nothing but the time it takes."""
    return functools.partial(route, kept_bytes=request.param)


def with_spare(route: Make, *cuts: int, **options: Any) -> Route:
    """Hops 2 and 3 after the head, and node 9, which holds everything, instead of the last."""
    made = route(*(cuts or (2, 4)), **options)
    made.add(9)
    made.tracker.answers = [[(2, 2, 4), (9, 4, 6)]]
    return made


@pytest.mark.parametrize("step", [1, 2, 3, 5])
@pytest.mark.parametrize("victim", [2, 3])
def test_a_node_takes_over_from_one_that_is_lost_at_any_step(route: Make, victim: int, step: int) -> None:
    made = route(2, 4)
    made.add(9)
    made.ways[peer_id(victim)].dies_at = step
    made.tracker.answers = [[(9, 2, 4), (3, 4, 6)] if victim == 2 else [(2, 2, 4), (9, 4, 6)]]

    assert made.generate(PROMPT, 6) == WHOLE
    [(epoch, loss, position, failed)] = made.tracker.asked
    assert (epoch, loss.peer_id, loss.code, failed) == (0, peer_id(victim), "node_failed", [])
    assert (loss.start_layer, loss.end_layer) == ((2, 4) if victim == 2 else (4, 6))
    assert "relay: cut" in loss.cause
    assert position == len(PROMPT) + max(0, step - 2)


def test_two_nodes_may_take_over_from_one(route: Make) -> None:
    made = route(2)
    made.add(8)
    made.add(9)
    made.ways[peer_id(2)].dies_at = 4
    made.tracker.answers = [[(8, 2, 3), (9, 3, 6)]]

    assert made.generate(PROMPT, 6) == WHOLE
    assert [(hop["start_layer"], hop["end_layer"]) for hop in made.pipeline.hop_table()] == [(0, 2), (2, 3), (3, 6)]


def test_the_whole_route_may_be_another_and_this_nodes_own_layers_too(route: Make) -> None:
    made = route(2, 4)
    made.add(9)
    made.ways[peer_id(2)].dies_at = 4
    made.tracker.answers = [[(9, 3, 6)]]

    assert made.generate(PROMPT, 6) == WHOLE
    assert made.engines[0].steps[-1].end_layer == 3


def test_what_stays_is_told_the_new_epoch_and_what_is_left_is_freed_under_the_old_ticket(route: Make) -> None:
    made = with_spare(route)
    made.paths[1].dies_at = 4
    made.generate(PROMPT, 6)
    made.paths[1].is_dead = False
    made.pipeline.release()

    epochs = [headers[names.EPOCH] for headers in made.paths[0].asked]
    assert epochs == sorted(epochs)
    assert {headers[names.TICKET] for headers in made.paths[0].asked if headers[names.EPOCH] == "1"} == {"ticket 1"}
    assert {headers[names.EPOCH] for headers in made.ways[peer_id(9)].asked} == {"1"}
    tickets = [ticket for path in (*made.paths, made.ways[peer_id(9)]) for _, ticket in path.closed]
    assert tickets == ["ticket 1", "the ticket", "ticket 1"]


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_the_table_tells_how_far_each_hop_came_and_those_that_were_left_too(route: Make, step: int) -> None:
    made = with_spare(route)
    made.paths[1].dies_at = step
    made.generate(PROMPT, 6)

    worked = len(PROMPT) + 5
    assert [hop["tokens"] for hop in made.pipeline.hop_table()] == [worked] * 3, "the new one has worked what it lacked"
    [left] = made.pipeline.left_table()
    assert (left["peer_id"], left["start_layer"], left["end_layer"], left["epoch"]) == (peer_id(3), 4, 6, 0)
    assert left["tokens"] == [0, 4, 7, 8, 9][step - 1]


def test_a_hop_that_is_back_before_there_is_another_goes_on_with_the_step_it_missed(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [NotNow("layers 4–5 have no node online", 0)]
    made.paths[1].dies_at = 4
    made.while_waiting = lambda: revive(made, 3)

    assert made.generate(PROMPT, 6) == WHOLE
    assert len(made.pauses_s) == 3
    assert [asked[headers] for asked in made.paths[0].asked for headers in (names.STEP,)] == list("1234567")
    assert {headers[names.EPOCH] for headers in made.paths[1].asked} == {"0"}
    assert made.failover.switched == []


def revive(made: Route, after: int) -> None:
    if len(made.pauses_s) == after:
        made.paths[1].is_dead = False


def test_the_pauses_grow_and_are_never_long(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [NotNow("nobody", 0)]
    made.paths[1].dies_at = 4
    made.failover.clock = lambda: 0.0
    made.while_waiting = lambda: revive(made, 30)
    made.generate(PROMPT, 6)

    assert all(0.25 <= pause_s <= 1.25 for pause_s in made.pauses_s)


def test_when_nobody_takes_over_in_time_one_error_says_who_was_lost_and_why_nobody_could(route: Make) -> None:
    clock, started = Time(), Time().now
    made = with_spare(route)
    made.tracker.answers = [NotNow("layers 4–5 have no node online", 0)]
    made.paths[1].dies_at = 4
    made.failover.clock = clock
    made.failover.wait = lambda deadline, seconds: setattr(clock, "now", clock.now + seconds)

    with pytest.raises(HopFailed) as failed:
        made.generate(PROMPT, 6)
    expected = "layers 4–5 on peer 00000003: relay: no such peer; direct: no direct endpoint"
    assert str(failed.value) == (
        f"pipeline error: {expected}; no other node could take over: layers 4–5 have no node online"
    )
    assert failed.value.code == "node_failed"
    assert FAILOVER_WAIT_S - 1 <= clock.now - started <= FAILOVER_WAIT_S


def test_a_hop_that_had_no_time_left_isnt_reported_as_lost(route: Make) -> None:
    made = with_spare(route)
    hop = made.pipeline.hops[0]
    hurried = Deadline.after(LEAST_LEFT_S / 2)
    made.pipeline._route.session = replace(made.pipeline.session, deadline=hurried)
    with pytest.raises(DeadlineOver, match="no answer in time"):
        made.failover.lost(HopFailed("no answer in time", hop, "deadline"), 5)
    assert not made.tracker.asked


def test_a_hop_that_was_too_slow_for_the_requests_time_ends_it_as_late(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [NotNow("layers 4–5 have no node online", 0)]
    made.failover.wait_s = 0.0
    with pytest.raises(DeadlineOver, match="no answer in time; no other node could take over: layers 4–5"):
        made.failover.lost(HopFailed("no answer in time", made.pipeline.hops[0], "deadline"), 5)
    [(_, loss, _, _)] = made.tracker.asked
    assert loss.code == "deadline"


def test_when_everybody_is_full_the_end_says_so(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [NotNow("no node has room", 0)]
    made.failover.clock = iter(range(0, 1000, 10)).__next__
    made.paths[1].spoil = lambda answer: refusal(wire.Code.BUSY)

    with pytest.raises(HopFailed, match="no node has room") as failed:
        made.generate(PROMPT, 6)
    assert failed.value.code == "busy"


def test_the_requests_deadline_ends_the_wait_with_that_error(route: Make) -> None:
    made = with_spare(route, deadline_s=2)
    made.tracker.answers = [NotNow("nobody", 0)]
    made.paths[1].dies_at = 1
    made.while_waiting = lambda: time.sleep(made.pauses_s[-1])

    with pytest.raises(HopFailed, match="no other node could take over: nobody"):
        made.generate(PROMPT, 6)


def test_a_tracker_that_cant_be_asked_is_asked_again(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [NoAnswer("the tracker can't be asked: refused"), *made.tracker.answers]
    made.paths[1].dies_at = 4

    assert made.generate(PROMPT, 6) == WHOLE
    assert [epoch for epoch, *_ in made.tracker.asked] == [0, 0]


def test_a_session_that_goes_on_elsewhere_is_left_alone(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [NotOurs("epoch 1 is the session's")]
    made.paths[1].dies_at = 4

    with pytest.raises(Stale):
        made.generate(PROMPT, 6)
    assert made.pauses_s == []


def test_a_tracker_that_doesnt_know_this_node_isnt_waited_for(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [Refused("the tracker refuses a reroute, HTTP 401: revoked")]
    made.paths[1].dies_at = 4

    with pytest.raises(HopFailed, match="no other node could take over: the tracker refuses"):
        made.generate(PROMPT, 6)
    assert made.pauses_s == []


def test_without_a_tracker_to_ask_the_first_loss_is_the_end(route: Make) -> None:
    made = route(2, 4)
    made.paths[1].dies_at = 4

    with pytest.raises(HopFailed, match=r"direct: no direct endpoint$"):
        made.generate(PROMPT, 6)


@pytest.mark.parametrize("code", [wire.Code.BUSY, wire.Code.INTERNAL])
def test_a_hop_that_refuses_the_step_is_left_too(route: Make, code: wire.Code) -> None:
    made = with_spare(route)
    made.paths[1].spoil = lambda answer: refusal(code)

    assert made.generate(PROMPT, 6) == WHOLE
    assert made.tracker.asked[0][1].code == code


def test_a_hop_that_answers_nonsense_is_left(route: Make) -> None:
    made = with_spare(route)
    made.paths[1].spoil = lambda answer: type(answer)(200, answer.headers, b'{"token_ids":[]}')

    assert made.generate(PROMPT, 6) == WHOLE
    assert made.tracker.asked[0][1].code == "internal"


def test_a_tail_that_can_hold_no_answer_to_a_form_is_not_waited_for(route: Make) -> None:
    made = with_spare(route)
    made.paths[1].spoil = lambda answer: refusal(wire.Code.NO_GRAMMAR)
    made.tracker.answers = [NotNow("no other holds layers 4–5", 0.0)]

    with pytest.raises(HopFailed, match="no other node could take over: no other holds layers 4–5"):
        made.generate(PROMPT, 6)
    assert made.pauses_s == []


@pytest.mark.parametrize("code", [wire.Code.STALE, wire.Code.BAD_REQUEST, wire.Code.BAD_GRAMMAR])
def test_what_another_hop_would_say_too_is_the_end(route: Make, code: wire.Code) -> None:
    made = with_spare(route)
    made.paths[1].spoil = lambda answer: refusal(code)

    with pytest.raises(HopRefused):
        made.generate(PROMPT, 6)
    assert made.tracker.asked == []


def test_a_second_loss_names_the_first_too(route: Make) -> None:
    made = with_spare(route)
    made.add(8)
    made.paths[1].dies_at = 4
    made.ways[peer_id(9)].dies_at = 2
    made.tracker.answers = [*made.tracker.answers, [(2, 2, 4), (8, 4, 6)]]

    assert made.generate(PROMPT, 6) == WHOLE
    assert [(epoch, loss.peer_id, failed) for epoch, loss, _, failed in made.tracker.asked] == [
        (0, peer_id(3), []),
        (1, peer_id(9), [peer_id(3)]),
    ]


def test_two_hops_lost_at_once_are_replaced_one_after_the_other(route: Make) -> None:
    made = with_spare(route)
    made.add(8)
    made.paths[0].dies_at, made.paths[1].dies_at = 4, 3
    made.tracker.answers = [[(2, 2, 4), (9, 4, 6)], [(8, 2, 4), (9, 4, 6)]]

    assert made.generate(PROMPT, 6) == WHOLE


def test_a_route_that_isnt_signed_is_not_followed(route: Make) -> None:
    made = with_spare(route)
    made.paths[1].dies_at = 4
    allow, refusals = made.tracker.allow, iter([wire.WireError(wire.Code.FORBIDDEN, "it isn't signed")])

    def refuse_once(*arguments: Any) -> Any:
        for error in refusals:
            raise error
        return allow(*arguments)

    made.failover.allow = refuse_once
    assert made.generate(PROMPT, 6) == WHOLE
    assert len(made.pauses_s) == 1


def test_whoever_is_cancelled_doesnt_wait_on(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [NotNow("nobody", 0)]
    made.paths[1].dies_at = 4

    def check() -> None:
        if made.pauses_s:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.generate(PROMPT, 6, check=check)
    assert len(made.pauses_s) == 1


def test_the_tracker_is_told_at_the_end_what_it_took(route: Make) -> None:
    made = with_spare(route)
    made.paths[1].dies_at = 4
    made.generate(PROMPT, 6)

    [told] = [one.as_dict() for one in made.failover.switched]
    kept = made.keeping.num_bytes > 0
    assert (told["epoch"], told["kept"], told["replayed_tokens"]) == (1, "activations" if kept else "tokens", 8)
    assert told["resume_ms"] > 0
    # Two steps of two milliseconds: on the new hop, and with token ids on the head, too; the middle doesn't tell.
    assert told["replay_compute_ms"] == (4.0 if kept else 8.0)


def test_only_the_replacement_works_again_where_activations_were_kept(route: Make) -> None:
    made = with_spare(route, kept_bytes=1_000_000)
    made.paths[1].dies_at = 4
    made.generate(PROMPT, 6)

    assert [int(headers[names.POSITION]) for headers in made.paths[0].asked] == [0, 4, 7, 8, 9, 10, 11]
    new = made.ways[peer_id(9)].asked
    assert [int(headers[names.POSITION]) for headers in new] == [0, 4, 8, 9, 10, 11]
    assert [names.SAMPLING in headers for headers in new] == [False, False, True, True, True, True]
    assert [headers[names.TOKENS] for headers in new[:2]] == ["10,20,30,40", "50,60,70,71"]
    assert [headers.get(names.RESERVE) for headers in new] == ["99", *[None] * 5]


def test_it_is_asked_whether_to_go_on_while_a_replacement_is_filled(route: Make) -> None:
    made = with_spare(route, kept_bytes=1_000_000)
    made.paths[1].dies_at = 4

    def check() -> None:
        if len(made.ways[peer_id(9)].asked) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.generate(PROMPT, 6, check=check)


def test_two_that_take_over_from_one_are_filled_one_after_the_other(route: Make) -> None:
    made = route(2, 5, kept_bytes=1_000_000)
    made.add(8)
    made.add(9)
    made.ways[peer_id(2)].dies_at = 5
    made.tracker.answers = [[(8, 2, 3), (9, 3, 5), (3, 5, 6)]]

    assert made.generate(PROMPT, 6) == WHOLE
    assert [step.position for step in made.engines[0].steps] == [0, 4, 7, 8, 9, 10, 11]
    assert [step.position for step in made.engines[2].steps] == [0, 4, 7, 8, 9, 10, 11]
    assert [int(headers[names.POSITION]) for headers in made.ways[peer_id(9)].asked] == [0, 4, 8, 9, 10, 11]


def test_a_replacement_that_is_lost_while_it_is_filled_is_replaced_too(route: Make) -> None:
    made = with_spare(route)
    made.add(8)
    made.paths[1].dies_at = 5
    made.ways[peer_id(9)].dies_at = 1
    made.tracker.answers = [*made.tracker.answers, [(2, 2, 4), (8, 4, 6)]]

    assert made.generate(PROMPT, 6) == WHOLE


def test_what_a_hop_lost_by_itself_it_is_given_alone(route: Make) -> None:
    made = route(2, 4, kept_bytes=1_000_000)
    lost: list[int] = []

    def lose_once() -> None:
        if len(made.engines[2].steps) == 4 and not lost:
            lost.append(1)
            made.engines[2].sessions.drop_cache(SESSION)

    assert made.generate(PROMPT, 5, check=lose_once) == WHOLE[:5]
    assert [step.position for step in made.engines[2].steps] == [0, 4, 7, 8, 0, 4, 8, 9, 10][:9]
    assert [step.position for step in made.engines[1].steps] == [0, 4, 7, 8, 9, 10]
    assert made.failover.switched == []


def test_nothing_is_kept_when_the_session_is_over(route: Make) -> None:
    made = with_spare(route)
    made.generate(PROMPT, 6)
    made.pipeline.release()

    assert made.keeping.num_bytes == 0


def test_a_route_may_be_left_before_anything_is_lost(route: Make) -> None:
    made = with_spare(route)
    numbers = itertools.count()

    def check() -> None:
        if next(numbers) == 4:
            assert made.failover.move(11)

    assert made.generate(PROMPT, 6, check=check) == WHOLE
    assert made.tracker.asked[0][1].code == MOVE
    assert made.paths[1].asked[-1][names.POSITION] != made.ways[peer_id(9)].asked[-1][names.POSITION]


def test_a_move_that_has_nowhere_to_go_changes_nothing(route: Make) -> None:
    made = with_spare(route)
    made.tracker.answers = [NotNow("nobody", 0)]

    assert made.generate(PROMPT, 6, check=lambda: made.failover.move(11)) == WHOLE
    assert made.failover.switched == []
