"""Answers of a given form, with a tokenizer of some 300 tokens: every byte is one."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarError, Grammars, GrammarState, digest_of
from nodes.text import Tokenizer
from tests.nodes.models import make_tokenizer

EOS, OTHER_EOS = 2, 1
TOKENIZER = Tokenizer(make_tokenizer(), {EOS})
SIZE = len(TOKENIZER.backend)
GRAMMARS = Grammars(TOKENIZER, SIZE)


def json_of(schema: Any) -> str:
    return f"start: %json {json.dumps(schema)}"


PERSON = json_of(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "hair": {"enum": ["red", "the quick"]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
CALLS = 'start: (TEXT | call)+\nTEXT: /[^<]+/\ncall: "<call>" %json {"type": "array"} "</call>"'
FORMS = [PERSON, CALLS, json_of(True), 'start: "the quick" | "the" /.*/ "dog"', json_of({"format": "email"})]


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.backend(text, add_special_tokens=False)["input_ids"]
    return ids


def allowed(state: GrammarState, ids: list[int]) -> list[int]:
    row = np.zeros(SIZE, dtype=np.float32)
    state.forbid(row, ids)
    return [int(token_id) for token_id in np.flatnonzero(row == 0)]


def walk(grammar: Grammar, seed: int, most: int) -> list[int]:
    """An answer of the form, at random."""
    chance, state, ids = random.Random(seed), grammar.begin(), list[int]()
    while len(ids) < most and ids[-1:] != [EOS]:
        ids.append(chance.choice(allowed(state, ids)))
    return ids


def test_only_what_the_form_allows_can_follow() -> None:
    state = GRAMMARS.check('start: "ab" | "ac"').begin()

    assert [TOKENIZER.decode([one]) for one in allowed(state, [])] == ["a"]
    assert [TOKENIZER.decode([one]) for one in allowed(state, ids_of("a"))] == ["b", "c"]


def test_what_is_complete_can_only_end() -> None:
    state = GRAMMARS.check('start: "ab"').begin()

    assert EOS not in allowed(state, ids_of("a"))
    assert allowed(state, ids_of("ab")) == [EOS]
    assert allowed(state, [*ids_of("ab"), EOS]) == [EOS]


def test_what_may_go_on_may_end_too() -> None:
    state = GRAMMARS.check('start: "a"+').begin()

    assert set(allowed(state, ids_of("aa"))) == {EOS, *ids_of("a")}
    assert allowed(state, [*ids_of("aa"), EOS, EOS]) == [EOS]
    assert set(allowed(state, ids_of("a"))) == {EOS, *ids_of("a")}


def test_a_model_may_have_several_tokens_that_end_a_text() -> None:
    grammars = Grammars(Tokenizer(make_tokenizer(), {EOS, OTHER_EOS, 10**6}), SIZE)
    state = grammars.check('start: "a"').begin()

    assert allowed(state, ids_of("a")) == [OTHER_EOS, EOS]
    assert allowed(state, [*ids_of("a"), OTHER_EOS]) == [OTHER_EOS, EOS]


@pytest.mark.parametrize("vocab_size", [SIZE + 7, SIZE + 100, SIZE - 3])
def test_logits_may_have_another_number_of_rows_than_there_are_tokens(vocab_size: int) -> None:
    state = Grammars(TOKENIZER, vocab_size).check(r"start: /(.|\n)*/").begin()
    row = np.zeros(vocab_size, dtype=np.float32)
    state.forbid(row, [])

    assert np.isfinite(row[ids_of("the quick dog")]).all()
    assert np.isinf(row[SIZE:]).all()
    assert np.isinf(row[:2]).all()  # special tokens are no text


def test_answers_of_a_schema_are_json_whatever_the_model_wants() -> None:
    grammar = GRAMMARS.check(PERSON)
    for seed in range(20):
        ids = walk(grammar, seed, 2000)
        if ids[-1] == EOS:
            answer = json.loads(TOKENIZER.decode(ids[:-1]))
            assert isinstance(answer["name"], str)
            assert type(answer["age"]) is int
            assert answer.get("hair") in (None, "red", "the quick")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMS), st.integers(0, 2**32), st.data())
def test_what_can_follow_is_a_matter_of_the_ids_alone(form: str, seed: int, data: st.DataObject) -> None:
    """However a session came to its ids: step by step, back and on another way, or all at once."""
    grammar, chance = GRAMMARS.check(form), random.Random(seed)
    state, ids = grammar.begin(), list[int]()
    for crop in data.draw(st.lists(st.none() | st.integers(0, 30), max_size=25)):
        here = allowed(state, ids)
        assert here == allowed(grammar.begin(), ids)
        ids = ids[:crop] if crop is not None else [*ids, chance.choice(here)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("start: foo", "can't be kept token by token"),
        ("", "can't be kept token by token"),
        (json_of({"type": "objekt"}), "can't be kept token by token"),
        (json_of({"pattern": "(secret"}), "can't be kept token by token"),
        (json_of({"$ref": "http://example.com/x"}), "can't be kept token by token"),
        (json_of({"type": "string", "pattern": "^[0-9]{2}$", "minLength": 3}), "nothing satisfies it"),
        (json_of({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "write anyOf"),
        (json_of({"patternProperties": {"^a": {}, "^ab": {"type": "null"}}}), "make them differ"),
        (json_of(False), "nothing satisfies it"),
        (json_of({"properties": {f"p{number}": {} for number in range(700)}}), "the form is too complex"),
        ('start: "' + "x" * MAX_GRAMMAR_BYTES + '"', f"the form is too long: {MAX_GRAMMAR_BYTES + 9} bytes of grammar"),
        ('start: "\ud800"', "half a surrogate pair"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_what_is_no_form_is_said_in_words(text: str, words: str, is_new: bool) -> None:
    grammars = Grammars(TOKENIZER, SIZE) if is_new else GRAMMARS
    with pytest.raises(GrammarError) as error:
        grammars.check(text)
    assert words in str(error.value)
    assert not any(own in str(error.value) for own in ("\n", "secret", "example.com", "Regex", "JSON schema"))


def test_ids_of_another_form_are_refused_and_nothing_is_left_of_them() -> None:
    state = GRAMMARS.check('start: "ab"').begin()
    for ids in (ids_of("b"), ids_of("abc"), ids_of("c")):
        with pytest.raises(GrammarError, match="isn't of the form"):
            allowed(state, ids)
    assert allowed(state, ids_of("a")) == ids_of("b")


def test_what_others_have_met_of_a_form_is_no_ones_fault() -> None:
    """llguidance finds out a bounded number of things of a grammar, and all who use it share them."""
    grammar = GRAMMARS.check(json_of({"type": "string", "pattern": "^(.*a.{100})(.*b.{100})(.*c.{100})$"}))
    early, chance = grammar.begin(), random.Random(0)
    begun = ids_of('"a')
    expected = allowed(early, begun)
    spent = grammar.matcher()
    few = ids_of("abc")
    spent.consume_tokens(begun)
    while spent.compute_bitmask() and not spent.is_error():
        spent.consume_token(chance.choice(few))

    assert "too many states" in spent.get_error()
    assert allowed(early, begun) == expected
    assert allowed(grammar.begin(), begun) == expected


def test_a_bounded_number_is_kept_and_the_latest_used_stay() -> None:
    grammars = Grammars(TOKENIZER, SIZE, most=2)
    one, two = grammars.check('start: "a"'), grammars.check('start: "b"')
    assert grammars.check('start: "a"') is one
    grammars.check('start: "c"')

    assert grammars.get(two.digest) is None
    assert grammars.get(digest_of('start: "a"')) is one
    assert allowed(two.begin(), []) == ids_of("b")  # who has it goes on with it


def test_a_grammar_is_compiled_on_one_thread_and_used_on_another() -> None:
    grammars = Grammars(TOKENIZER, SIZE)
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(grammars.check, FORMS * 2))

    assert [one.text for one in made] == FORMS * 2
    assert all(allowed(one.begin(), []) for one in made)


def test_a_model_without_an_end_has_no_forms() -> None:
    with pytest.raises(GrammarError, match="names no token that ends a text"):
        Grammars(Tokenizer(make_tokenizer(), set()), SIZE).check(PERSON)


def test_a_tokenizer_of_another_kind_is_said_to_be_one() -> None:
    class Slow:
        def __len__(self) -> int:
            return 10

    with pytest.raises(GrammarError, match="is of a kind by which no answer can be held"):
        Grammars(Tokenizer(cast(Any, Slow()), {EOS}), SIZE).check(PERSON)
