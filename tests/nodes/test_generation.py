from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nodes.deadline import DeadlineOver
from nodes.downstream import HopFailed, HopRefused
from nodes.engine import Engine
from nodes.events import Cancelled
from nodes.executors import load_shard
from nodes.generation import MAX_REPLAYS
from nodes.hops import HopAnswer
from nodes.sampling import GREEDY, Sampling
from nodes.text import Tokenizer
from nodes.weights import ModelFolder
from relay import headers as names
from relay import wire
from tests.nodes.routes import PROMPT, SESSION, Make, Route, refusal


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9])
def test_a_prompt_goes_in_chunks_of_a_fixed_size_and_only_the_last_is_sampled(route: Make, length: int) -> None:
    made = route(3)
    made.generate(list(range(length)), 3)

    steps = made.engines[1].steps
    chunks = [min(4, length - start) for start in range(0, length, 4)]
    assert [step.hidden.shape[1] for step in steps if step.hidden is not None] == [*chunks, 1, 1]
    assert [step.position for step in steps] == [*range(0, length, 4), length, length + 1]
    assert [step.sampling is not None for step in steps] == [False] * (len(chunks) - 1) + [True] * 3


def test_a_hop_that_lost_its_cache_is_given_the_tokens_again(route: Make) -> None:
    made = route(2, 4)
    lost: list[int] = []

    def lose_once() -> None:
        if len(made.engines[2].steps) == 4 and not lost:
            lost.append(1)
            made.engines[2].sessions.drop_cache(SESSION)

    assert made.generate(PROMPT, 5, check=lose_once) == [71, 72, 73, 74, 75]
    assert [step.position for step in made.engines[2].steps] == [0, 4, 7, 8, 0, 4, 8, 10]
    assert {hop["tokens"] for hop in made.pipeline.hop_table()} == {len(PROMPT) + 4}, "each counts once"


def test_the_heads_own_lost_cache_is_replayed_too(route: Make) -> None:
    made = route(3)
    lost: list[int] = []

    def lose_once() -> None:
        if len(made.engines[0].steps) == 3 and not lost:
            lost.append(1)
            made.engines[0].sessions.drop_cache(SESSION)

    assert made.generate(PROMPT, 4, check=lose_once) == [71, 72, 73, 74]


def test_a_hop_that_loses_its_cache_at_every_step_is_given_up(route: Make) -> None:
    made = route(3)
    with pytest.raises(HopFailed, match="replaying didn't help"):
        made.generate(PROMPT, 20, check=lambda: made.engines[1].sessions.drop_cache(SESSION))
    positions = [int(headers[names.POSITION]) for headers in made.paths[0].asked]
    assert positions.count(0) <= MAX_REPLAYS + 1


def test_a_stale_answer_ends_it(route: Make) -> None:
    made = route(3)
    made.paths[0].spoil = lambda answer: refusal(wire.Code.STALE)
    with pytest.raises(HopRefused) as refused:
        made.generate(PROMPT, 1)
    assert refused.value.code == wire.Code.STALE


def test_it_is_asked_before_each_step_whether_to_go_on(route: Make) -> None:
    made = route(3)
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 4:
            raise Cancelled

    with pytest.raises(Cancelled):
        made.generate(PROMPT, 10, check=check)
    assert len(made.engines[0].steps) == 3


def test_the_requests_deadline_ends_it(route: Make) -> None:
    made = route(3, deadline_s=0)
    with pytest.raises(DeadlineOver):
        made.generate(PROMPT, 1)


def go_round(position: int, last_id: int) -> int:
    """A text that repeats itself: 11, 12, …, 15, 11, …"""
    return 11 + last_id % 5


def going_round(route: Make, *cuts: int, **options: Any) -> Route:
    made = route(*cuts, **options)
    for engine in made.engines:
        engine.next_token = go_round
    return made


ROUND = [1, *(11 + number % 5 for number in range(1, 12))]


@pytest.mark.parametrize("cuts", [(), (2,), (1, 4)])
def test_drafts_change_the_number_of_steps_and_nothing_else(route: Make, cuts: tuple[int, ...]) -> None:
    without, drafted = going_round(route, *cuts), going_round(route, *cuts)
    ids = without.generate(ROUND, 40)

    assert drafted.generate(ROUND, 40, drafts=8, chunk=16) == ids
    assert drafted.accepted > 20
    assert len(drafted.engines[-1].steps) < len(without.engines[-1].steps) / 2


def test_a_draft_that_is_wrong_is_cropped_on_every_hop(route: Make) -> None:
    """Every fifth token isn't what the repetition promises."""
    made = route(2, 4)
    for engine in made.engines:
        engine.next_token = lambda position, last_id: 99 if position % 7 == 0 else go_round(position, last_id)
    expected = [99 if position % 7 == 0 else 0 for position in range(12, 52)]

    ids = made.generate(ROUND, 40, drafts=8, chunk=16)

    assert [token_id if token_id == 99 else 0 for token_id in ids] == expected
    for engine in made.engines:
        ends = [step.position + step.num_tokens for step in engine.steps]
        assert any(step.position < end for step, end in zip(engine.steps[1:], ends, strict=False))
    table = made.pipeline.hop_table()
    assert table[-1]["drafted"] > table[-1]["accepted"] > 0
    assert [hop["drafted"] for hop in table[:-1]] == [0, 0]
    num_sampled = sum(step.sampling is not None for step in made.engines[2].steps) + table[-1]["accepted"]
    assert {hop["tokens"] for hop in table} == {len(ROUND) + num_sampled - 1}, "no guess counts that was wrong"


def test_every_hop_is_told_how_many_tokens_are_guesses(route: Make) -> None:
    made = going_round(route, 2, 4)
    made.generate(ROUND, 20, drafts=4, chunk=16)

    told = [[headers.get(names.DRAFTS) for headers in path.asked] for path in made.paths]
    assert told[0] == told[1]
    assert {"4", None} <= set(told[0])
    assert all(step.num_tokens == 1 + step.num_drafts for step in made.engines[2].steps[1:])


def test_nothing_is_sampled_beyond_the_room_that_was_reserved(route: Make) -> None:
    made = going_round(route, 3, reserve_tokens=len(ROUND) + 10)
    ids = made.generate(ROUND, 10, drafts=8, chunk=16)

    assert len(ids) == 10
    assert max(step.position + step.num_tokens for step in made.engines[1].steps) < len(ROUND) + 10


def test_a_tail_that_does_not_say_that_it_takes_drafts_is_given_none(route: Make) -> None:
    made = going_round(route, 3)
    made.paths[0].spoil = lambda answer: HopAnswer(answer.status, {}, answer.body)

    assert made.generate(ROUND, 20, drafts=8, chunk=16) == going_round(route).generate(ROUND, 20)
    assert all(step.num_tokens == 1 for step in made.engines[1].steps[1:])


@pytest.mark.parametrize("body", [b'{"token_ids":[]}', b'{"token_ids":[11,12]}'])
def test_a_tail_that_answers_what_was_not_asked_is_refused(route: Make, body: bytes) -> None:
    made = going_round(route, 3)
    made.paths[0].spoil = lambda answer: HopAnswer(200, answer.headers, body)

    with pytest.raises(HopFailed, match="tokens where 0 drafts were to be checked"):
        made.generate(ROUND, 1)


def test_a_cache_that_is_lost_between_drafts_is_replayed(route: Make) -> None:
    made = going_round(route, 2, 4)
    lost: list[int] = []

    def lose_once() -> None:
        if len(made.engines[1].steps) == 6 and not lost:
            lost.append(1)
            made.engines[1].sessions.drop_cache(SESSION)

    assert made.generate(ROUND, 30, drafts=8, chunk=16, check=lose_once) == going_round(route).generate(ROUND, 30)
    assert lost


WARM = Sampling(temperature=0.7, top_p=0.95, seed=11)
PENALISED = replace(WARM, repetition_penalty=1.05, frequency_penalty=0.1, top_k=40, min_p=0.01)
TEXT = "the quick brown fox jumps over the lazy dog and "


@pytest.fixture(scope="module", params=["lean", "transformers"])
def halves(tiny: ModelFolder, request: pytest.FixtureRequest) -> Iterator[list[Engine]]:
    yield from engines_of(tiny, [(0, 3), (3, 6)], request.param)


@pytest.fixture(scope="module")
def smol_halves(smollm2: ModelFolder) -> Iterator[list[Engine]]:
    yield from engines_of(smollm2, [(0, 15), (15, 30)], "auto")


def engines_of(folder: ModelFolder, spans: list[tuple[int, int]], executor: str) -> Iterator[list[Engine]]:
    engines = [Engine(load_shard(folder, *span, "float32", executor=executor), 4096) for span in spans]
    for engine in engines:
        engine.start()
    yield engines
    for engine in engines:
        engine.stop(5)


_sessions = itertools.count(1)


def answer(
    engines: list[Engine], prompt: list[int], count: int, sampling: Sampling, drafts: int
) -> tuple[list[int], int]:
    """(ids, drafts that were right)"""
    cuts = [engine.shard.end_layer for engine in engines[:-1]]
    session, reserve_tokens = f"{next(_sessions):032x}", len(prompt) + count
    made = Route(
        *cuts, dtype="float32", deadline_s=120, engines=engines, session=session, reserve_tokens=reserve_tokens
    )
    ids = made.generate(prompt, count, 64, sampling, drafts=drafts)
    for engine in engines:
        engine.close_session(session, 0, 0.0).result(5)
    return ids, made.accepted


@pytest.mark.parametrize("sampling", [GREEDY, WARM, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_a_real_model_says_the_same_with_drafts(halves: list[Engine], tiny: ModelFolder, sampling: Sampling) -> None:
    prompt = Tokenizer.load(tiny).plain_prompt(TEXT)
    few = tuple((token_id, 40.0) for token_id in (70, 80, 90))  # with so few words it repeats itself
    for one in (sampling, replace(sampling, logit_bias=few)):
        ids, _ = answer(halves, prompt, 24, one, drafts=0)
        drafted, accepted = answer(halves, prompt, 24, one, drafts=8)
        assert drafted == ids
    assert accepted > 5 or sampling is not GREEDY


@pytest.mark.parametrize("sampling", [GREEDY, replace(WARM, temperature=0.2)], ids=["greedy", "sampled"])
def test_the_demo_model_says_the_same_with_drafts(
    smol_halves: list[Engine], smollm2: ModelFolder, sampling: Sampling
) -> None:
    asked = [{"role": "user", "content": f"Repeat this exactly: {TEXT}"}]
    prompt = Tokenizer.load(smollm2).chat_prompt(asked)
    ids, _ = answer(smol_halves, prompt, 16, sampling, drafts=0)
    drafted, accepted = answer(smol_halves, prompt, 16, sampling, drafts=8)

    assert drafted == ids
    assert accepted > 2
