"""Sessions at once get what each gets alone: real layers, float32, whoever joins, leaves, retries or cancels beside."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from nodes.engine import Engine, Step, StepResult
from nodes.executors import load_shard
from nodes.sampling import GREEDY, Sampling
from nodes.shard import Shard
from nodes.weights import ModelFolder

WAIT_S = 60
CHUNK = 16
NUM_SESSIONS = 8

Serve = Callable[[Shard], Engine]


@pytest.fixture
def serve() -> Iterator[Serve]:
    engines: list[Engine] = []

    def begin(shard: Shard) -> Engine:
        engines.append(Engine(shard, 20_000))
        engines[-1].start()
        return engines[-1]

    yield begin
    for engine in engines:
        assert engine.stop(WAIT_S)


class Head:
    """Generates as a head does. With `chance` it is a bad client: sends steps twice, takes some back, guesses."""

    def __init__(self, engine: Engine, number: int, prompt: list[int], sampling: Sampling = GREEDY) -> None:
        self.engine, self.sampling = engine, sampling
        self.id, self.ids, self.num_prompt = f"{number:032x}", list(prompt), len(prompt)
        self.num_steps, self.position = 0, 0

    def generate(self, num_tokens: int, chance: random.Random | None = None) -> list[int]:
        while len(self.ids) < self.num_prompt + num_tokens:
            chunk = self.ids[self.position : self.position + CHUNK]
            is_last = self.position + len(chunk) == len(self.ids)
            drafts = chance.choices(range(200), k=chance.randrange(4)) if chance and is_last else []
            if chance and chance.random() < 0.1:
                self._send(chunk, is_last, []).cancel()  # and whether that was in time doesn't matter
            told = self._send(chunk, is_last, drafts)
            if chance and chance.random() < 0.3:
                assert self.engine.submit(self._step).result(WAIT_S) is told.result(WAIT_S)
            self.position += len(chunk)
            self.ids += told.result(WAIT_S).token_ids
        self.engine.close_session(self.id, 0, time.monotonic() + 60).result(WAIT_S)
        return self.ids[self.num_prompt : self.num_prompt + num_tokens]

    def _send(self, chunk: list[int], is_last: bool, drafts: list[int]) -> Future[StepResult]:
        self.num_steps += 1
        ids, sampling = (*chunk, *drafts), self.sampling if is_last else None
        layers = 0, self.engine.shard.num_layers
        reserve = 100 if self.position == 0 else 0
        self._step = Step(
            self.id, 0, self.num_steps, self.position, *layers, ids, None, sampling, reserve, num_drafts=len(drafts)
        )
        return self.engine.submit(self._step)


def prompts(count: int) -> list[list[int]]:
    chance = random.Random(7)
    return [chance.choices(range(200), k=chance.randrange(1, 40)) for _ in range(count)]


@pytest.mark.parametrize("executor", ["transformers", "lean"])
def test_eight_sessions_at_once_get_the_ids_they_get_alone(tiny: ModelFolder, serve: Serve, executor: str) -> None:
    engine = serve(load_shard(tiny, 0, 6, "float32", executor=executor))
    asked = [(prompt, Sampling(0.8, 0.9, number) if number % 2 else GREEDY) for number, prompt in enumerate(prompts(8))]
    alone = [Head(engine, number, *one).generate(12) for number, one in enumerate(asked)]
    assert engine.cached_tokens == 0

    def bad_client(number: int) -> list[int]:
        chance = random.Random(number)
        time.sleep(chance.random() * 0.02)  # they join one after another
        leaver = Head(engine, 200 + number, asked[number][0])
        leaver.generate(chance.randrange(1, 4), chance)
        return Head(engine, 100 + number, *asked[number]).generate(12, chance)

    with ThreadPoolExecutor(NUM_SESSIONS) as pool:
        assert list(pool.map(bad_client, range(NUM_SESSIONS))) == alone
    assert (engine.cached_tokens, engine.num_sessions) == (0, 0)
    assert engine.occupancy().batch > 1


def test_a_session_in_bfloat16_alone_gets_the_same_bits_beside_a_prompt(tiny: ModelFolder, serve: Serve) -> None:
    """A prompt's parts run alone, so that their shapes are the same."""
    engine = serve(load_shard(tiny, 0, 6, "bfloat16", executor="transformers"))
    first, second = prompts(2)
    alone = Head(engine, 1, first).generate(1)
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(Head(engine, 2, second * 4).generate, 1)
        assert Head(engine, 3, first).generate(1) == alone
        beside.result(WAIT_S)


def test_sessions_of_the_demo_model_at_once_get_the_ids_they_get_alone(smollm2: ModelFolder, serve: Serve) -> None:
    engine = serve(load_shard(smollm2, 0, 30, "float32"))
    asked = [[1, 4093, 198, 500 + number] for number in range(3)]
    alone = [Head(engine, number, prompt).generate(2) for number, prompt in enumerate(asked)]
    heads = [Head(engine, 100 + number, prompt) for number, prompt in enumerate(asked)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda head: head.generate(2), heads)) == alone
