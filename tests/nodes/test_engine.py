"""Real shards behind the queue: steps, retries, failures and the end."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from nodes.engine import MAX_QUEUED, Engine, EngineError, Step, StepResult
from nodes.executors import load_shard
from nodes.modules.shard import ModuleShard
from nodes.sampling import GREEDY, Sampling
from nodes.sessions import Busy, Missing, Stale
from nodes.shard import Shard
from nodes.weights import ModelFolder
from tests.nodes.greedy import chunks_of, generated
from tests.nodes.shards import NUM_LAYERS, FakeShard

ID, OTHER = "a" * 32, "b" * 32
WAIT_S = 30
PROMPT = tuple(range(10, 31))

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(tiny: ModelFolder) -> Iterator[MakeEngine]:
    engines: list[Engine] = []

    def make(layers: tuple[int, int] = (0, 6), room: int = 4000, dtype: str = "float32", **given: Any) -> Engine:
        engines.append(Engine(load_shard(tiny, *layers, dtype, executor="transformers"), room, **given))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        assert engine.stop(WAIT_S)


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    return make_engine()


def step(number: int, position: int, token_ids: tuple[int, ...], **fields: Any) -> Step:
    given: dict[str, Any] = {"session": ID, "epoch": 0, "start_layer": 0, "end_layer": 6, "hidden": None}
    given |= {"sampling": GREEDY, "reserve_tokens": 0} | fields
    return Step(step=number, position=position, token_ids=token_ids, **given)


def work(engine: Engine, one: Step) -> StepResult:
    return engine.submit(one).result(WAIT_S)


def error_of(future: Future[Any]) -> BaseException | None:
    return future.exception(WAIT_S)


def run_greedy(engine: Engine, num_tokens: int, session: str = ID, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    """As a head does: the prompt in chunks of 16, then token by token."""
    ids, position, number = list(prompt), 0, 0
    while len(ids) < len(prompt) + num_tokens:
        chunk, number = tuple(ids[position : position + 16]), number + 1
        is_last = position + len(chunk) == len(ids)
        result = work(engine, step(number, position, chunk, session=session, sampling=GREEDY if is_last else None))
        position += len(chunk)
        ids += result.token_ids
    return ids[len(prompt) :]


def test_it_generates_what_generate_does(engine: Engine, tiny: ModelFolder) -> None:
    expected, _ = generated(tiny, PROMPT, 20, 16, "float32")
    assert run_greedy(engine, 20) == expected


def test_two_engines_in_a_row_sample_what_one_does(make_engine: MakeEngine) -> None:
    whole, head, tail = make_engine(), make_engine((0, 3)), make_engine((2, 6))
    sampling = Sampling(0.8, 0.9, seed=11)
    position = 0
    for number, chunk in enumerate([*chunks_of(PROMPT, 16), (40,), (41,), (42,)], 1):
        one = step(number, position, chunk, sampling=sampling)
        first = work(head, dataclasses.replace(one, end_layer=3, sampling=None))
        assert first.hidden is not None
        assert first.token_ids == ()
        second = work(tail, dataclasses.replace(one, start_layer=3, hidden=first.hidden))
        assert second.hidden is None
        assert second.token_ids == work(whole, one).token_ids
        position += len(chunk)
    assert head.cached_tokens == tail.cached_tokens == whole.cached_tokens == position


def test_a_step_without_sampling_samples_nothing(engine: Engine) -> None:
    result = work(engine, step(1, 0, PROMPT, sampling=None))
    assert (result.hidden, result.token_ids) == (None, ())


def test_activations_in_another_dtype_are_cast_to_the_shards(make_engine: MakeEngine) -> None:
    tail = make_engine((3, 6))
    hidden = torch.randn(1, 4, 64).to(torch.bfloat16)
    one = step(1, 0, (5, 6, 7, 8), start_layer=3, hidden=hidden)
    other = dataclasses.replace(one, session=OTHER, hidden=hidden.float())
    assert work(tail, one).token_ids == work(tail, other).token_ids


def test_a_repeated_step_is_answered_without_being_worked(engine: Engine) -> None:
    first = work(engine, step(1, 0, PROMPT))
    assert work(engine, step(1, 0, PROMPT)) is first
    assert engine.cached_tokens == len(PROMPT)


def test_a_late_copy_of_an_earlier_step_changes_nothing(engine: Engine) -> None:
    work(engine, step(1, 0, PROMPT))
    work(engine, step(2, len(PROMPT), (9, 8, 7)))
    expected = work(engine, step(3, len(PROMPT) + 1, (5,))).token_ids
    assert isinstance(error_of(engine.submit(step(2, len(PROMPT), (9, 8, 7)))), Stale)
    work(engine, step(1, 0, PROMPT, session=OTHER))
    work(engine, step(2, len(PROMPT), (9, 5), session=OTHER))
    following = [step(4, len(PROMPT) + 2, (4,)), step(4, len(PROMPT) + 2, (4,), session=OTHER)]
    assert work(engine, following[0]).token_ids == work(engine, following[1]).token_ids
    assert expected


def test_a_cropped_cache_goes_on_as_if_the_cropped_had_never_been(engine: Engine) -> None:
    undisturbed = run_greedy(engine, 12)
    assert run_greedy(engine, 5, session=OTHER) == undisturbed[:5]
    position = len(PROMPT) + 4
    work(engine, step(90, position, (200, 201, 202), session=OTHER))  # a draft that is not accepted
    ids, number = undisturbed[:5], 90
    while len(ids) < 12:
        number += 1
        ids += work(engine, step(number, len(PROMPT) + len(ids) - 1, (ids[-1],), session=OTHER)).token_ids
    assert ids == undisturbed


def test_a_step_beyond_the_cache_says_how_much_there_is(engine: Engine) -> None:
    work(engine, step(1, 0, PROMPT))
    error = error_of(engine.submit(step(2, 30, (5,))))
    assert isinstance(error, Missing)
    assert error.cached_tokens == len(PROMPT)


def test_sessions_do_not_see_each_other(engine: Engine) -> None:
    alone = run_greedy(engine, 8)
    futures = []
    position = 0
    for number, chunk in enumerate(chunks_of(PROMPT, 16), 1):
        for session in ("c" * 32, "d" * 32):
            ids = chunk if session[0] == "c" else tuple(reversed(chunk))
            futures.append(engine.submit(step(number, position, ids, session=session)))
        position += len(chunk)
    assert futures[-2].result(WAIT_S).token_ids == (alone[0],)
    assert engine.num_sessions == 3


def test_more_than_the_room_is_busy_and_a_closed_session_returns_it(make_engine: MakeEngine) -> None:
    engine = make_engine(room=100)
    work(engine, step(1, 0, PROMPT, reserve_tokens=90))
    assert isinstance(error_of(engine.submit(step(1, 0, PROMPT, session=OTHER, reserve_tokens=20))), Busy)
    assert engine.close_session(ID, 0, time.monotonic() + 60).result(WAIT_S)
    assert (engine.cached_tokens, engine.num_sessions) == (0, 0)
    work(engine, step(1, 0, PROMPT, session=OTHER, reserve_tokens=90))


def test_a_closed_session_is_refused(engine: Engine) -> None:
    work(engine, step(1, 0, PROMPT))
    engine.close_session(ID, 0, time.monotonic() + 60).result(WAIT_S)
    assert isinstance(error_of(engine.submit(step(2, 0, PROMPT))), Stale)
    assert isinstance(error_of(engine.close_session(OTHER, 0, time.monotonic() + 60)), type(None))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"start_layer": 4, "end_layer": 7, "hidden": torch.zeros(1, 1, 64)}, "layers 4:7"),
        ({"start_layer": 3, "end_layer": 3}, "layers 3:3"),
        ({"start_layer": 2}, "brings activations"),
        ({"hidden": torch.zeros(1, 1, 63)}, "shape 1,tokens,64"),
        ({"hidden": torch.zeros(2, 1, 64)}, "shape 1,tokens,64"),
        ({"hidden": torch.zeros(1, 64)}, "shape 1,tokens,64"),
        ({"hidden": torch.zeros(1, 2, 64)}, "1 token ids come with activations of 2 tokens"),
        ({"token_ids": (300,)}, "token ids must be from 0 to 299"),
        ({"token_ids": ()}, "positions 0:0"),
        ({"position": 4096}, "context of 4096"),
    ],
)
def test_a_step_that_does_not_fit_the_shard_is_refused(engine: Engine, fields: dict[str, Any], words: str) -> None:
    error = error_of(engine.submit(dataclasses.replace(step(1, 0, (5,)), **fields)))
    assert isinstance(error, EngineError)
    assert words in str(error)


def test_activations_that_are_not_numbers_fail_the_step_at_the_tail(make_engine: MakeEngine) -> None:
    tail = make_engine((3, 6))
    hidden = torch.full((1, 1, 64), float("nan"))
    error = error_of(tail.submit(step(1, 0, (5,), start_layer=3, hidden=hidden)))
    assert isinstance(error, EngineError)
    assert "not numbers" in str(error)


def test_an_exception_in_the_shard_fails_the_step_and_drops_what_cannot_be_trusted(engine: Engine) -> None:
    expected = run_greedy(engine, 3, session=OTHER)
    work(engine, step(1, 0, PROMPT[:16], sampling=None))
    with breaking_layer(engine.shard, 4):
        error = error_of(engine.submit(step(2, 16, PROMPT[16:])))
    assert isinstance(error, EngineError)
    assert "out of paper" in str(error)
    missing = error_of(engine.submit(step(3, 16, PROMPT[16:])))
    assert isinstance(missing, Missing)
    assert missing.cached_tokens == 0
    work(engine, step(4, 0, PROMPT[:16], sampling=None))
    assert work(engine, step(5, 16, PROMPT[16:])).token_ids == (expected[0],)


def _layers(shard: Shard) -> list[Any]:
    assert isinstance(shard, ModuleShard)
    return shard._layers


class breaking_layer:
    def __init__(self, shard: Shard, layer: int) -> None:
        self._module = _layers(shard)[layer]

    def __enter__(self) -> None:
        def fail(*_: object) -> None:
            raise RuntimeError("out of paper")

        self._hook = self._module.register_forward_pre_hook(fail)

    def __exit__(self, *exc: object) -> None:
        self._hook.remove()


class Blocked:
    """An engine that is held in a step until it is let go, over a shard without a model."""

    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()
        shard = FakeShard()
        shard.before = self._wait
        self.engine = Engine(shard, 4000)
        self.engine.start()
        self.in_hand = self.submit(1, 0)
        assert self.entered.wait(WAIT_S)

    def _wait(self) -> None:
        self.entered.set()
        assert self.let_go.wait(WAIT_S)

    def submit(self, number: int, position: int, session: str = ID) -> Future[StepResult]:
        return self.engine.submit(step(number, position, (5,), session=session, end_layer=NUM_LAYERS))


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    made = Blocked()
    yield made
    made.let_go.set()
    assert made.engine.stop(WAIT_S)


def test_a_full_queue_says_busy_at_once_but_still_closes(blocked: Blocked) -> None:
    waiting = [blocked.submit(2 + number, 1 + number) for number in range(MAX_QUEUED)]
    refused = blocked.submit(999, 0, OTHER)
    assert isinstance(refused.exception(0), Busy)
    closed = blocked.engine.close_session(OTHER, 0, time.monotonic() + 60)
    blocked.let_go.set()
    assert blocked.in_hand.result(WAIT_S).token_ids
    assert all(future.result(WAIT_S).token_ids for future in waiting)
    assert not closed.result(WAIT_S)


def test_a_cancelled_step_is_not_worked(blocked: Blocked) -> None:
    waiting = blocked.submit(1, 0, OTHER)
    assert waiting.cancel()
    blocked.let_go.set()
    blocked.engine.close_session(ID, 0, time.monotonic() + 60).result(WAIT_S)
    assert blocked.engine.num_sessions == 0


def test_it_says_how_long_a_step_waited_and_worked(blocked: Blocked) -> None:
    second = blocked.submit(1, 0, OTHER)
    blocked.let_go.set()
    assert blocked.in_hand.result(WAIT_S).compute_ms > 0
    assert 0 < second.result(WAIT_S).queue_ms <= blocked.in_hand.result().compute_ms + 1000


def test_stopping_finishes_the_step_in_hand_and_fails_those_that_wait(blocked: Blocked) -> None:
    engine, waiting = blocked.engine, blocked.submit(1, 0, OTHER)
    assert not engine.stop(0.01)
    blocked.let_go.set()
    assert engine.stop(WAIT_S)
    assert blocked.in_hand.result(0).token_ids
    assert isinstance(waiting.exception(0), Busy)
    assert isinstance(blocked.submit(2, 1).exception(0), Busy)
    assert engine.cached_tokens == 0


def test_idle_sessions_are_freed_by_the_engines_clock(make_engine: MakeEngine) -> None:
    now = [1000.0]
    engine = make_engine(clock=lambda: now[0], idle_s=600)
    work(engine, step(1, 0, PROMPT))
    now[0] += 601
    work(engine, step(1, 0, (5,), session=OTHER))  # idle ones are looked for after a step
    engine.close_session("e" * 32, 0, now[0]).result(WAIT_S)
    assert engine.cached_tokens == 1
