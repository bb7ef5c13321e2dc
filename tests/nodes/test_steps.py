from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from nodes import activations
from nodes.engine import Step
from nodes.grammar import MAX_GRAMMAR_BYTES, digest_of
from nodes.sampling import Sampling
from nodes.steps import Layers, StepHeaders, integer
from relay import headers as names
from relay.wire import Code, WireError

LAYERS = Layers(start_layer=2, end_layer=6, num_layers=6, width=8, vocab_size=100, context_length=64)
SAMPLING = Sampling(temperature=0.5, top_p=0.9, seed=3)
HIDDEN = torch.arange(24, dtype=torch.bfloat16).reshape(1, 3, 8)


def headers(**changes: str | None) -> dict[str, str]:
    """Of a good step to the tail; a change by the header's name with underscores, None takes it out."""
    good: dict[str, str | None] = {
        names.SESSION: "a" * 32,
        names.EPOCH: "1",
        names.STEP: "7",
        names.POSITION: "10",
        names.SHAPE: "1,3,8",
        names.DTYPE: "bfloat16",
        names.START_LAYER: "3",
        names.END_LAYER: "6",
        names.TOKENS: "5,6,7",
        names.SAMPLING: SAMPLING.to_json(),
    }
    given = good | {"x-meshnet-" + name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in given.items() if value is not None}


def read(body: bytes = activations.encode(HIDDEN, "bfloat16"), **changes: str | None) -> Step:
    return StepHeaders.read(headers(**changes)).for_engine(body, LAYERS)


def read_with(name: str, value: str | None) -> Step:
    return StepHeaders.read(headers(**{name: value})).for_engine(activations.encode(HIDDEN, "bfloat16"), LAYERS)


def test_a_step_becomes_what_the_engine_works_on() -> None:
    step = read(reserve="40")

    assert (step.session, step.epoch, step.step, step.position) == ("a" * 32, 1, 7, 10)
    assert (step.start_layer, step.end_layer, step.token_ids, step.reserve_tokens) == (3, 6, (5, 6, 7), 40)
    assert step.sampling == SAMPLING
    assert step.hidden is not None
    assert torch.equal(step.hidden, HIDDEN)


def test_a_step_says_how_many_of_its_tokens_are_guesses() -> None:
    assert read().num_drafts == 0
    assert read(drafts="2").num_drafts == 2
    assert read(drafts="2", end_layer="5", tokens=None, sampling=None).num_drafts == 2


def test_biases_are_of_tokens_that_there_are() -> None:
    assert read(sampling=replace(SAMPLING, logit_bias=((99, 1.0),)).to_json()).sampling
    with pytest.raises(WireError, match="x-meshnet-sampling"):
        read(sampling=replace(SAMPLING, logit_bias=((100, 1.0),)).to_json())


def test_a_hop_in_the_middle_needs_no_tokens() -> None:
    step = read(end_layer="5", tokens=None, sampling=None)

    assert (step.token_ids, step.sampling) == ((), None)


@pytest.mark.parametrize(
    "name", ["session", "epoch", "step", "position", "shape", "dtype", "start_layer", "end_layer", "tokens"]
)
def test_a_missing_header_is_named(name: str) -> None:
    with pytest.raises(WireError, match="x-meshnet-" + name.replace("_", "-")) as error:
        read_with(name, None)
    assert error.value.code == Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session", "A" * 32),
        ("session", "a" * 31),
        ("epoch", "-1"),
        ("epoch", "1.0"),
        ("step", "١"),
        ("step", "9" * 400),
        ("position", str(2**31)),
        ("position", "62"),  # three tokens more than the context
        ("shape", "1,3"),
        ("shape", "1,3,9"),
        ("shape", "2,3,8"),
        ("shape", "1,0,8"),
        ("shape", f"1,{2**31},8"),
        ("shape", "1,-3,8"),
        ("dtype", "float16"),
        ("dtype", "pickle"),
        ("start_layer", "1"),
        ("start_layer", "6"),
        ("end_layer", "7"),
        ("end_layer", "3"),
        ("tokens", "5,6"),
        ("tokens", "5,6,"),
        ("tokens", "5,6,100"),
        ("tokens", "5,6,x"),
        ("drafts", "3"),
        ("drafts", "-1"),
        ("drafts", "x"),
        ("sampling", "{}"),
        ("sampling", "["),
        ("sampling", '{"temperature":-1,"top_p":1,"seed":0}'),
    ],
)
def test_a_bad_header_is_refused(name: str, value: str) -> None:
    with pytest.raises(WireError) as error:
        read_with(name, value)
    assert error.value.code == Code.BAD_REQUEST
    assert "x-meshnet" in error.value.message


def test_sampling_is_for_the_tail_only() -> None:
    with pytest.raises(WireError, match="x-meshnet-sampling"):
        read(end_layer="5", tokens=None)


@pytest.mark.parametrize("body", [b"", b"x", bytes(49), bytes(47), pickle.dumps({"hidden": 1})])
def test_a_body_of_another_length_is_refused(body: bytes) -> None:
    with pytest.raises(WireError) as error:
        read(body)
    assert error.value.code == Code.BAD_REQUEST


def test_nothing_is_allocated_for_a_shape_that_the_body_hasnt(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("allocated")

    for name in ("empty", "zeros", "frombuffer"):
        monkeypatch.setattr(torch, name, explode)
    wide = Layers(2, 6, 6, width=2**20, vocab_size=100, context_length=2**31)
    with pytest.raises(WireError):
        StepHeaders.read(headers(shape=f"1,{2**30},{2**20}", tokens=None, sampling=None, end_layer="5")).for_engine(
            b"123", wide
        )


FORM = 'start: "é"'
TEXT = FORM.encode()
HELD = replace(SAMPLING, grammar=digest_of(FORM), prompt_tokens=2).to_json()
BODY = activations.encode(HIDDEN, "bfloat16")


def with_grammar(body: bytes = BODY + TEXT, num_bytes: int = len(TEXT), sampling: str = HELD) -> str | None:
    told = headers(grammar_bytes=str(num_bytes), sampling=sampling)
    return StepHeaders.read(told).grammar_text(body)


def test_a_grammars_text_comes_after_the_activations() -> None:
    assert with_grammar() == FORM
    step = read(BODY + TEXT, grammar_bytes=str(len(TEXT)), sampling=HELD)
    assert step.hidden is not None
    assert torch.equal(step.hidden, HIDDEN)
    assert step.sampling is not None
    assert (step.sampling.grammar, step.grammar) == (digest_of(FORM), None)


def test_a_step_may_name_a_grammar_without_bringing_it() -> None:
    assert StepHeaders.read(headers(sampling=HELD)).grammar_text(BODY) is None
    assert read(sampling=HELD).sampling == Sampling.from_json(HELD)


@pytest.mark.parametrize(
    "given",
    [
        {"num_bytes": len(BODY + TEXT) + 1},
        {"body": b"x" * (MAX_GRAMMAR_BYTES + 100), "num_bytes": MAX_GRAMMAR_BYTES + 1},
        {"num_bytes": 2},  # the last byte of é and what follows it
        {"body": BODY + FORM.encode("utf-16")},
        {"sampling": SAMPLING.to_json()},
        {"sampling": replace(SAMPLING, grammar=digest_of("another")).to_json()},
    ],
)
def test_a_grammar_that_the_sampling_does_not_name_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(WireError) as error:
        with_grammar(**given)
    assert error.value.code == Code.BAD_REQUEST


def test_activations_and_text_fill_the_body() -> None:
    with pytest.raises(WireError, match="and the body don't fit"):
        read(BODY + TEXT, grammar_bytes=str(len(TEXT) - 1), sampling=HELD)
    with pytest.raises(WireError, match="and the body don't fit"):
        read(BODY, grammar_bytes="9999", sampling=HELD)


def test_a_number_may_have_a_default() -> None:
    assert integer({}, names.RESERVE, default=3) == 3
    assert integer({names.RESERVE: "4"}, names.RESERVE, default=3) == 4
