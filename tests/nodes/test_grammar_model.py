"""Real layers, in float32, and answers held to a form: whatever is guessed, cropped, forgotten or lost, the ids are
those of an undisturbed run, and they are of the form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from nodes.downstream import HopRefused
from nodes.engine import Engine
from nodes.executors import load_shard
from nodes.grammar import Grammar, Grammars
from nodes.sampling import Sampling
from nodes.text import Tokenizer
from nodes.weights import ModelFolder
from relay import headers as names
from relay.wire import Code
from tests.nodes.routes import Route

SCHEMA = {
    "type": "object",
    "properties": {
        "jumps": {"type": "array", "items": {"enum": ["the quick brown fox", "the lazy dog"]}, "maxItems": 3},
        "over": {"type": "integer", "minimum": -9, "maximum": 99},
        "home": {"type": "object", "properties": {"is": {"type": "boolean"}}, "required": ["is"]},
    },
    "required": ["jumps", "over", "home"],
    "additionalProperties": False,
}
FORM = "start: %json " + json.dumps(SCHEMA | {"x-guidance": {"whitespace_flexible": False}})
TEXT = "the quick brown fox jumps over the lazy dog and"
COUNT, CHUNK, EOS = 40, 8, 2
_sessions = itertools.count(1)


@pytest.fixture(scope="module")
def engines(tiny: ModelFolder) -> Iterator[list[Engine]]:
    """Three hops of a route, a fourth that holds what the last does, and one that holds all."""
    spans = [(0, 2), (2, 4), (4, 6), (4, 6), (0, 6)]
    made = [Engine(load_shard(tiny, *span, "float32"), 4096) for span in spans]
    for engine in made:
        engine.start()
    yield made
    for engine in made:
        engine.stop(5)


@pytest.fixture(scope="module")
def tokenizer(tiny: ModelFolder) -> Tokenizer:
    return Tokenizer.load(tiny)


@pytest.fixture(scope="module")
def form(tiny: ModelFolder, tokenizer: Tokenizer) -> Grammar:
    return Grammars(tokenizer, tiny.config.vocab_size).check(FORM)


class World:
    """A route of the real layers, each node with grammars of its own."""

    def __init__(self, engines: list[Engine], tokenizer: Tokenizer, form: Grammar, **options: Any) -> None:
        self.engines, self.form, self.tokenizer = engines, form, tokenizer
        self.session = f"{next(_sessions):032x}"
        self.prompt = tokenizer.plain_prompt(TEXT)
        told: dict[str, Any] = {"dtype": "float32", "deadline_s": 120, "session": self.session, "grammar": form}
        cuts = options.pop("cuts", (2, 4))
        self.route = Route(*cuts, engines=engines[:3] if cuts else engines[4:], **told, **options)
        self.spare = self.route.add(9, engines[3])
        self.route.tracker.answers = [[(2, 2, 4), (9, 4, 6)]]
        for path in self.route.ways.values():
            path.grammars = self.new_grammars()

    @property
    def tail(self) -> Any:
        return self.route.paths[1]

    def new_grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.engines[0].shard.vocab_size)

    def sampling(self, temperature: float = 0.9) -> Sampling:
        return Sampling(temperature, 0.95, 11, grammar=self.form.digest, prompt_tokens=len(self.prompt))

    def generate(self, sampling: Sampling, count: int = COUNT, **options: Any) -> list[int]:
        try:
            return self.route.generate(self.prompt, count, CHUNK, sampling, **options)
        finally:
            for engine in self.engines:
                engine.close_session(self.session, 1, 0.0).result(30)

    @property
    def texts_sent(self) -> list[int]:
        """The steps with which the grammar went to the tail."""
        return [number for number, told in enumerate(self.tail.asked, 1) if names.GRAMMAR_BYTES in told]


@pytest.fixture
def world(engines: list[Engine], tokenizer: Tokenizer, form: Grammar) -> World:
    return World(engines, tokenizer, form)


@pytest.fixture(scope="module")
def undisturbed(engines: list[Engine], tokenizer: Tokenizer, form: Grammar) -> dict[float, list[int]]:
    def ids_of(temperature: float) -> list[int]:
        world = World(engines, tokenizer, form)
        return world.generate(world.sampling(temperature))

    return {temperature: ids_of(temperature) for temperature in (0.0, 0.9)}


def test_an_answer_is_of_its_form_and_then_ends(engines: list[Engine], tokenizer: Tokenizer, form: Grammar) -> None:
    for seed in range(3):
        world = World(engines, tokenizer, form, cuts=())
        ids = world.generate(replace(world.sampling(1.0), seed=seed), 110)
        end = ids.index(EOS)
        jsonschema.validate(json.loads(tokenizer.decode(ids[:end])), SCHEMA)
        assert set(ids[end:]) == {EOS}


def test_the_text_goes_to_the_tail_once_when_it_first_samples(world: World) -> None:
    world.generate(world.sampling(), 5)

    first = world.tail.asked[world.texts_sent[0] - 1]
    assert world.texts_sent == [1 + sum(names.SAMPLING not in told for told in world.tail.asked)]
    assert int(first[names.GRAMMAR_BYTES]) == len(FORM)
    assert all(names.GRAMMAR_BYTES not in told for told in world.route.paths[0].asked)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_one_node_says_the_same(
    engines: list[Engine], tokenizer: Tokenizer, form: Grammar, undisturbed: dict[float, list[int]], temperature: float
) -> None:
    world = World(engines, tokenizer, form, cuts=())
    assert world.generate(world.sampling(temperature)) == undisturbed[temperature]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_guesses_change_nothing(world: World, undisturbed: dict[float, list[int]], temperature: float) -> None:
    assert world.generate(world.sampling(temperature), drafts=8) == undisturbed[temperature]
    assert world.route.pipeline.hop_table()[-1]["drafted"] > 0


@pytest.mark.parametrize("kept_bytes", [0, 10_000_000], ids=["tokens", "activations"])
@pytest.mark.parametrize("dies_after", [1, 2, 9, 30])
def test_another_tail_goes_on_in_the_middle_of_the_form(
    engines: list[Engine],
    tokenizer: Tokenizer,
    form: Grammar,
    undisturbed: dict[float, list[int]],
    dies_after: int,
    kept_bytes: int,
) -> None:
    """`dies_after` so many tokens."""
    world = World(engines, tokenizer, form, kept_bytes=kept_bytes)
    num_chunks = -(-len(world.prompt) // CHUNK)
    world.tail.dies_at = num_chunks + dies_after
    temperature = 0.9 if dies_after % 2 else 0.0

    assert world.generate(world.sampling(temperature), drafts=2 * (dies_after > 2)) == undisturbed[temperature]
    assert world.route.pipeline.session.epoch == 1
    assert any(names.GRAMMAR_BYTES in told for told in world.spare.asked)


def test_a_tail_that_lost_its_cache_reads_the_answer_again(world: World, undisturbed: dict[float, list[int]]) -> None:
    lost: list[int] = []

    def lose_once() -> None:
        if len(world.tail.asked) == 20 and not lost:
            lost.append(1)
            world.engines[2].drop_caches().result(30)

    assert world.generate(world.sampling(), check=lose_once) == undisturbed[0.9]
    assert lost


def test_a_tail_that_forgot_the_form_is_told_it_again(world: World, undisturbed: dict[float, list[int]]) -> None:
    def forget() -> None:
        if len(world.tail.asked) in (12, 13, 20):
            world.tail.grammars = world.new_grammars()

    assert world.generate(world.sampling(), check=forget) == undisturbed[0.9]
    assert len(world.texts_sent) >= 3
    numbers = [told[names.STEP] for told in world.tail.asked]
    assert len(numbers) - len(set(numbers)) == len(world.texts_sent) - 1  # under the same number


def test_a_tail_without_a_tokenizer_leaves_it_to_another(world: World, undisturbed: dict[float, list[int]]) -> None:
    world.tail.grammars = None

    assert world.generate(world.sampling()) == undisturbed[0.9]
    assert [loss.code for _, loss, _, _ in world.route.tracker.asked] == [Code.NO_GRAMMAR]


def test_where_there_is_no_other_it_says_why(world: World) -> None:
    world.tail.grammars = None
    world.route.failover.rerouter = None

    with pytest.raises(HopRefused, match="layers 4–5 on peer 00000003: this node has no tokenizer"):
        world.generate(world.sampling())


def test_a_form_that_becomes_too_complex_is_said_to_be_and_no_other_tail_is_asked(
    engines: list[Engine], tokenizer: Tokenizer
) -> None:
    many = {"type": "object", "properties": {f"p{number}": {} for number in range(700)}}
    text = f"start: /[a-z]/ /[a-z]/ /[a-z]/ %json {json.dumps(many)}"
    form = Grammars(tokenizer, engines[0].shard.vocab_size).check(text)
    world = World(engines, tokenizer, form)

    with pytest.raises(HopRefused, match="the form is too complex") as refused:
        world.generate(world.sampling())
    assert refused.value.code == Code.BAD_GRAMMAR
    assert not world.route.tracker.asked


def test_without_a_form_nothing_is_different(world: World) -> None:
    plain = replace(world.sampling(), grammar="", prompt_tokens=0)
    world.generate(plain, 5)

    assert world.texts_sent == []
    assert all("grammar" not in told.get(names.SAMPLING, "") for told in world.tail.asked)
