"""Real layers, in float32: whatever is lost and whatever its replacement is filled from, the ids are those of an
undisturbed run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nodes.engine import Engine
from nodes.executors import load_shard
from nodes.sampling import GREEDY, Sampling
from nodes.text import Tokenizer
from nodes.weights import ModelFolder
from tests.nodes.routes import Route, peer_id

WARM = Sampling(temperature=0.9, top_p=0.95, seed=11, frequency_penalty=0.3, repetition_penalty=1.05)
TEXT = "the quick brown fox jumps over the lazy dog and the quick brown fox jumps over the"
COUNT, CHUNK = 16, 8
_sessions = itertools.count(1)


@pytest.fixture(scope="module")
def engines(tiny: ModelFolder) -> Iterator[list[Engine]]:
    yield from engines_of(tiny, "lean")


@pytest.fixture(scope="module")
def reference_engines(tiny: ModelFolder) -> Iterator[list[Engine]]:
    yield from engines_of(tiny, "transformers")


def engines_of(folder: ModelFolder, executor: str) -> Iterator[list[Engine]]:
    """Three hops of a route, and a fourth that holds what the last two do."""
    spans = [(0, 2), (2, 4), (4, 6), (2, 6)]
    made = [Engine(load_shard(folder, *span, "float32", executor=executor), 4096) for span in spans]
    for engine in made:
        engine.start()
    yield made
    for engine in made:
        engine.stop(5)


def generate(
    engines: list[Engine], prompt: list[int], sampling: Sampling, victim: int = 0, dies_at: int = -1, **options: Any
) -> tuple[list[int], Route]:
    session, drafts = f"{next(_sessions):032x}", options.pop("drafts", 0)
    made = Route(2, 4, dtype="float32", deadline_s=120, engines=engines[:3], session=session, **options)
    made.add(9, engines[3])
    if victim:
        made.ways[peer_id(victim)].dies_at = dies_at
        made.tracker.answers = [[(9, 2, 4), (3, 4, 6)] if victim == 2 else [(2, 2, 4), (9, 4, 6)]]
    ids = made.generate(prompt, COUNT, CHUNK, sampling, drafts=drafts)
    for engine in engines:
        engine.close_session(session, 1, 0.0).result(30)
    return ids, made


@pytest.mark.parametrize("kept_bytes", [0, 10_000_000], ids=["tokens", "activations"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_the_ids_are_those_of_an_undisturbed_run(
    engines: list[Engine], tiny: ModelFolder, sampling: Sampling, kept_bytes: int
) -> None:
    prompt = Tokenizer.load(tiny).plain_prompt(TEXT)
    expected, _ = generate(engines, prompt, sampling)
    num_chunks = -(-len(prompt) // CHUNK)
    for victim, dies_at in itertools.product((2, 3), (1, num_chunks, num_chunks + 6, num_chunks + COUNT - 1)):
        ids, made = generate(engines, prompt, sampling, victim, dies_at, kept_bytes=kept_bytes)
        assert ids == expected
        assert made.pipeline.session.epoch == 1


@pytest.mark.parametrize("kept_bytes", [0, 10_000_000], ids=["tokens", "activations"])
def test_transformers_own_modules_say_the_same_too(
    reference_engines: list[Engine], tiny: ModelFolder, kept_bytes: int
) -> None:
    prompt = Tokenizer.load(tiny).plain_prompt(TEXT)
    expected, _ = generate(reference_engines, prompt, WARM)
    ids, _ = generate(reference_engines, prompt, WARM, victim=3, dies_at=15, kept_bytes=kept_bytes)
    assert ids == expected


def test_drafts_that_are_in_hand_when_a_hop_is_lost_change_nothing(engines: list[Engine], tiny: ModelFolder) -> None:
    prompt = Tokenizer.load(tiny).plain_prompt(TEXT)
    few = replace(WARM, logit_bias=tuple((token_id, 40.0) for token_id in (70, 80, 90)))  # it repeats itself
    for sampling, victim in itertools.product((few, replace(few, temperature=0.0)), (2, 3)):
        expected, undisturbed = generate(engines, prompt, sampling, drafts=8)
        drafted = next(
            number for number, headers in enumerate(undisturbed.paths[1].asked, 1) if "x-meshnet-drafts" in headers
        )
        ids, made = generate(engines, prompt, sampling, victim, drafted, drafts=8, kept_bytes=10_000_000)
        assert ids == expected
        assert made.pipeline.session.epoch == 1
