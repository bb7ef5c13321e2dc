"""What fails, fails alone. The engine is driven turn by turn, over a shard that a test can follow."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from nodes.engine import Engine, EngineError, OutOfMemory, Step, StepResult
from nodes.sampling import GREEDY, Sampling
from nodes.sessions import Busy, Missing
from nodes.work import NotNumbers
from tests.nodes.clocks import Time
from tests.nodes.shards import BREAKS, IS_NAN, NUM_LAYERS, TAKES_MEMORY, WIDTH, FakeShard, digests, next_id

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
PROMPT = (5, 6, 7)


class Driven:
    """An engine whose turns the test takes."""

    def __init__(self, *layers: int, room: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self.shard = FakeShard(*layers or (0, NUM_LAYERS))
        self.engine = Engine(self.shard, room, clock, node="attic")
        self.futures: list[Future[Any]] = []

    def submit(
        self, session: str, number: int, position: int, ids: tuple[int, ...], **given: Any
    ) -> Future[StepResult]:
        layers = {"start_layer": self.shard.start_layer, "end_layer": self.shard.end_layer}
        usual = {**layers, "epoch": 0, "hidden": None, "sampling": GREEDY if self.shard.is_tail else None}
        step = Step(session=session, step=number, position=position, token_ids=ids, **usual | given)
        self.futures.append(self.engine.submit(step))
        return self.futures[-1]

    def run(self) -> None:
        """Until everything is answered."""
        with torch.inference_mode():
            for _ in range(1 + len(self.futures)):
                self.engine.turn()
        assert all(future.done() for future in self.futures)

    def prompts(self, *sessions: str) -> None:
        told = [self.submit(session, 1, 0, PROMPT) for session in sessions]
        self.run()
        assert [future.result(0).token_ids for future in told] == [(next_id(PROMPT),)] * len(sessions)
        self.shard.forwards.clear()


@pytest.fixture
def driven() -> Driven:
    return Driven()


@pytest.fixture
def middle() -> Driven:
    return Driven(1, 3)


def test_steps_that_wait_together_are_one_forward(driven: Driven) -> None:
    driven.prompts(A, B, C)
    told = [driven.submit(session, 2, 3, (number,)) for number, session in enumerate((A, B, C))]
    driven.run()

    assert driven.shard.forwards == [[1, 1, 1]]
    assert [future.result(0).token_ids for future in told] == [(next_id((*PROMPT, number)),) for number in range(3)]
    assert driven.engine.occupancy().batch == 3


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (BREAKS, EngineError, "layers 0–3 of node attic failed: RuntimeError: out of paper"),
        (IS_NAN, NotNumbers, "the logits that layers 0–3 of node attic computed are not numbers"),
        (TAKES_MEMORY, OutOfMemory, "of at most 1000 tokens are cached: lower its --max-kv-tokens"),
    ],
)
def test_only_the_session_at_fault_fails(driven: Driven, fault: int, kind: type[Exception], words: str) -> None:
    driven.prompts(A, B, C)
    told = [driven.submit(session, 2, 3, (number,)) for session, number in ((A, 1), (B, fault), (C, 2))]
    driven.run()

    error = told[1].exception(0)
    assert type(error) is kind
    assert words in str(error)
    assert [told[which].result(0).token_ids for which in (0, 2)] == [(next_id((*PROMPT, 1)),), (next_id((*PROMPT, 2)),)]
    assert driven.shard.forwards[0] == [1, 1, 1]

    again = driven.submit(B, 3, 3, (1,))
    driven.run()
    missing = again.exception(0)
    assert isinstance(missing, Missing)
    assert missing.cached_tokens == 0


def test_out_of_memory_is_a_matter_of_room(driven: Driven) -> None:
    told = driven.submit(A, 1, 0, (TAKES_MEMORY,))
    driven.run()

    assert isinstance(told.exception(0), Busy)


def test_no_memory_for_a_cache_is_told_too(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(driven.shard, "new_cache", none_left)
    told = driven.submit(A, 1, 0, PROMPT)
    driven.run()

    assert isinstance(told.exception(0), OutOfMemory)


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_activations_that_come_broken_are_the_senders_fault(middle: Driven, broken: float) -> None:
    middle.shard.change = lambda output: output * broken
    told = middle.submit(A, 1, 0, (5,), hidden=torch.full((1, 1, WIDTH), broken))
    middle.run()

    assert "the activations that came to layers 1–2 of node attic are not numbers" in str(told.exception(0))


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_activations_that_break_here_are_this_nodes_fault(middle: Driven, broken: float) -> None:
    middle.shard.change = lambda output: output * broken
    told = middle.submit(A, 1, 0, (5,), hidden=torch.full((1, 1, WIDTH), 3.0))
    middle.run()

    assert "the activations that layers 1–2 of node attic computed are not numbers" in str(told.exception(0))


def test_large_numbers_are_numbers(middle: Driven) -> None:
    middle.shard.change = lambda output: torch.full_like(output, 3e38)
    told = middle.submit(A, 1, 0, (5,), hidden=torch.full((1, 1, WIDTH), 3.0))
    middle.run()

    assert told.result(0).hidden is not None


def test_a_step_that_does_not_fit_touches_nothing(driven: Driven) -> None:
    driven.prompts(A)
    refused = [driven.submit(A, 2, 3, (1, 2), num_drafts=2), driven.submit(A, 3, 3, (999,))]
    driven.run()

    assert "2 drafts aren't fewer than the step's 2 tokens" in str(refused[0].exception(0))
    assert isinstance(refused[1].exception(0), EngineError)
    assert driven.engine.cached_tokens == 3


def test_the_tail_answers_the_drafts_that_are_right_and_the_token_after_them(driven: Driven) -> None:
    driven.prompts(A)
    text = list(PROMPT)
    for _ in range(4):
        text.append(next_id(text))
    told = driven.submit(A, 2, 3, (*text[3:6], 0), num_drafts=3)  # two right, one wrong
    driven.run()

    assert text[6] != 0
    assert told.result(0).token_ids == tuple(text[4:7])
    after = driven.submit(A, 3, 6, (text[6],))
    driven.run()
    assert after.result(0).token_ids == (next_id(text),)
    assert driven.engine.cached_tokens == 7


def test_drafts_of_several_sessions_run_together_in_the_middle_of_a_route_too() -> None:
    head = Driven(0, 2)
    for session in (A, B):
        head.submit(session, 1, 0, PROMPT)
    head.run()
    head.shard.forwards.clear()
    told = [head.submit(A, 2, 3, (1,)), head.submit(B, 2, 3, (1, 2, 3), num_drafts=2)]
    head.run()

    assert head.shard.forwards == [[1, 3]]
    hidden = [future.result(0).hidden for future in told]
    assert hidden[1] is not None
    assert hidden[1][0, :, 0].tolist() == digests((*PROMPT, 1, 2, 3))[3:]


def test_penalties_look_at_what_the_session_said_before(driven: Driven) -> None:
    said, after = next((a, b) for a in range(60) for b in range(60) if next_id((a, b)) == a)
    for session in (A, B):
        driven.submit(session, 1, 0, (said,))
    driven.run()
    penalised = Sampling(0.0, 1.0, 0, presence_penalty=2.0)
    told = [driven.submit(A, 2, 1, (after,)), driven.submit(B, 2, 1, (after,), sampling=penalised)]
    driven.run()

    assert told[0].result(0).token_ids == (said,)
    assert told[1].result(0).token_ids != (said,)


def test_closing_frees_before_anything_else_that_waits(driven: Driven) -> None:
    driven.prompts(A)
    waits = driven.submit(B, 1, 0, PROMPT)
    late = driven.submit(A, 2, 3, (1,))
    closed = driven.engine.close_session(A, 0, time.monotonic() + 60)
    held = []
    driven.shard.before = lambda: held.append(driven.engine.cached_tokens)
    driven.run()

    assert closed.result(0)
    assert waits.result(0)
    assert "closed" in str(late.exception(0))
    assert driven.shard.forwards == [[3]]
    assert held == [0]


def test_what_memory_is_promised_is_told() -> None:
    driven = Driven(room=100)
    driven.submit(A, 1, 0, PROMPT, reserve_tokens=60)
    refused = driven.submit(B, 1, 0, PROMPT, reserve_tokens=50)
    driven.run()

    assert "room for 50 tokens; 40 are free here" in str(refused.exception(0))
    assert driven.engine.occupancy().as_dict() == {
        "sessions": 1,
        "cached_tokens": 3,
        "reserved_tokens": 60,
        "max_cached_tokens": 100,
        "batch": 0.0,
    }


def test_layers_that_give_no_numbers_are_found_when_their_pace_is_measured() -> None:
    driven = Driven(1, 3)
    driven.shard.change = lambda output: output * math.nan
    pace = driven.engine.measure_pace()
    driven.run()
    with pytest.raises(NotNumbers, match="layers 1–2 give what isn't numbers"):
        pace.result(0)


def test_the_pace_of_a_layer_is_measured_without_a_trace() -> None:
    for layers in ((0, 4), (1, 3)):
        driven = Driven(*layers)
        pace = driven.engine.measure_pace()
        driven.run()
        assert pace.result(0) > 0
        assert driven.engine.cached_tokens == 0


def test_the_pace_follows_what_sessions_that_are_alone_take() -> None:
    clock = Time()
    driven = Driven(clock=clock)
    driven.prompts(A, B)
    assert driven.engine.ms_per_layer is None, "a prompt's tokens go through together"

    def token(position: int, milliseconds: int) -> float | None:
        def takes() -> None:
            clock.now += milliseconds / 1000

        driven.shard.before = takes
        driven.submit(A, position, position, (1,))
        driven.run()
        driven.futures.clear()
        return driven.engine.ms_per_layer

    assert token(3, 40) == pytest.approx(10)
    assert token(4, 80) == pytest.approx((10 + 20) / 2), "the first ones count alike"
    for position in range(5, 305):
        last = token(position, 80)
    assert last == pytest.approx(20, rel=0.01)
    assert token(305, 40) == pytest.approx(20 - 0.02 * 10, rel=0.01), "one that was disturbed counts little"


def test_a_pace_that_was_measured_under_load_does_not_stay() -> None:
    clock = Time()
    driven = Driven(clock=clock)

    def takes(milliseconds: float) -> Callable[[], None]:
        def take() -> None:
            clock.now += milliseconds / 1000

        return take

    driven.shard.before = takes(400)
    driven.engine.measure_pace()
    driven.run()
    assert driven.engine.ms_per_layer == pytest.approx(100), "it was starting"

    driven.prompts(A, B)
    driven.shard.before = takes(40)
    for position in range(3, 13):
        for session in (A, B):
            driven.submit(session, position, position, (1,))
        driven.run()
        driven.futures.clear()
    assert 10 < (busy := driven.engine.ms_per_layer or 0) < 20, "two together take no less than one would"

    driven.shard.before = takes(400)
    for session in (A, B):
        driven.submit(session, 13, 13, (1,))
    driven.run()
    assert driven.engine.ms_per_layer == busy, "they may take longer"


def test_the_pace_is_measured_anew_while_nobody_works_here() -> None:
    clock = Time()
    driven = Driven(clock=clock)

    def look(later_s: float, milliseconds: int = 40) -> float | None:
        def takes() -> None:
            clock.now += milliseconds / 1000

        clock.now += later_s
        driven.shard.before = takes
        driven.engine.look_at_pace()
        driven.run()
        return driven.engine.ms_per_layer

    assert look(0, 4000) == pytest.approx(1000), "it was starting"
    assert look(60) == pytest.approx(1000), "that cost 16 s, and a chat would have had to wait"
    assert look(16 / 0.005) == pytest.approx(10)
    assert look(31, 80) == pytest.approx(10), "it isn't old"
    assert look(31, 80) == pytest.approx(20)
    driven.prompts(A)
    assert look(600, 40) == pytest.approx(20), "a session holds something here, and its next step may come"
