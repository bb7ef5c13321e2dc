"""Draws that can be repeated, and that follow the distribution."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from nodes.draws import gumbel, nucleus
from nodes.sampling import GREEDY, Logits, Sampling, SamplingError, TokenLogprobs, sample, verify

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))


def warm(temperature: float = 1.0, top_p: float = 1.0, seed: int = 1) -> Sampling:
    return Sampling(temperature, top_p, seed)


def frequencies(logits: torch.Tensor, sampling: Sampling, num_draws: int = 4000) -> list[float]:
    counts = Counter(sample(logits, sampling, position) for position in range(num_draws))
    return [counts[token] / num_draws for token in range(len(logits))]


def test_greedy_takes_the_highest_and_of_equals_the_lower_id() -> None:
    assert sample(torch.tensor([1.0, 3.0, 2.0]), GREEDY, 0) == 1
    assert sample(torch.tensor([1.0, 3.0, 3.0, 3.0]), GREEDY, 0) == 1
    assert sample(torch.zeros(50000), GREEDY, 0) == 0


def test_the_same_seed_and_position_draw_the_same_token() -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    draws = [sample(logits, warm(seed=5), position) for position in range(50)]
    again = [sample(logits, warm(seed=5), position) for position in reversed(range(50))]
    assert draws == again[::-1]
    assert len(set(draws)) > 25


def test_seed_and_position_change_the_draw() -> None:
    logits = torch.zeros(1000)
    assert len({sample(logits, warm(seed=seed), 0) for seed in range(-20, 20)}) > 30
    assert len({sample(logits, warm(), position) for position in range(40)}) > 30


def test_the_draws_are_these_on_every_machine() -> None:
    """The generator is a format: another one would give users other texts for the seed they kept."""
    logits = torch.zeros(50000)
    draws = [sample(logits, warm(seed=seed), position) for seed in (0, 1, -1, 2**63 - 1) for position in (0, 1, 4095)]
    assert draws == DRAWS


def test_draws_follow_the_probabilities() -> None:
    assert frequencies(LOGITS, warm()) == pytest.approx([0.5, 0.25, 0.15, 0.07, 0.03], abs=0.03)


def test_temperature_sharpens_and_flattens() -> None:
    for temperature in (0.5, 2.0):
        powers = [p ** (1 / temperature) for p in (0.5, 0.25, 0.15, 0.07, 0.03)]
        expected = [power / sum(powers) for power in powers]
        assert frequencies(LOGITS, warm(temperature)) == pytest.approx(expected, abs=0.03)


def test_a_tiny_temperature_is_greedy_without_overflow() -> None:
    assert sample(torch.tensor([1e30, -1e30, 5.0]), warm(1e-300), 0) == 0


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.0, [0]), (0.4, [0]), (0.6, [0, 1]), (0.8, [0, 1, 2]), (0.95, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: list[int]) -> None:
    assert nucleus(LOGITS.numpy().astype(np.float64), top_p).tolist() == kept


def test_top_p_of_equals_keeps_the_lower_ids() -> None:
    assert nucleus(np.zeros(10), 0.35).tolist() == [0, 1, 2, 3]


def test_top_p_cuts_like_a_full_sort_would() -> None:
    scaled = np.random.default_rng(0).normal(size=2000) * 3
    probabilities = np.exp(scaled) / np.exp(scaled).sum()
    order = np.argsort(-probabilities, kind="stable")
    for top_p in (0.1, 0.5, 0.9, 0.999):
        count = int((np.cumsum(probabilities[order]) < top_p).sum()) + 1
        assert nucleus(scaled, top_p).tolist() == sorted(order[:count].tolist())


def test_what_top_p_drops_is_never_drawn() -> None:
    assert frequencies(LOGITS, warm(top_p=0.7), 1000)[2:] == [0, 0, 0]


def test_a_small_change_of_logits_seldom_changes_the_draw() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5000, generator=generator) * 2
    moved = logits + torch.randn(5000, generator=generator) * 1e-5
    changed = sum(sample(logits, warm(), n) != sample(moved, warm(), n) for n in range(300))
    assert changed <= 1


def test_the_noise_is_standard_gumbel() -> None:
    noise = gumbel(42, 7, np.arange(200_000, dtype=np.uint64))
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.std() == pytest.approx(math.pi / math.sqrt(6), abs=0.01)
    assert np.isfinite(noise).all()


def test_a_token_has_the_same_noise_whichever_others_are_kept() -> None:
    all_noise = gumbel(1, 2, np.arange(100, dtype=np.uint64))
    assert gumbel(1, 2, np.array([3, 77], dtype=np.uint64)).tolist() == all_noise[[3, 77]].tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [GREEDY, warm()])
def test_logits_that_are_not_numbers_are_an_error(bad: float, sampling: Sampling) -> None:
    with pytest.raises(SamplingError, match="not numbers"):
        sample(torch.tensor([0.0, bad, 1.0]), sampling, 0)


def test_json_gives_back_what_it_was_made_of() -> None:
    sampling = warm(0.7, 0.9, -(2**63))
    assert Sampling.from_json(sampling.to_json()) == sampling
    assert json.loads(sampling.to_json()) == {"temperature": 0.7, "top_p": 0.9, "seed": -(2**63)}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"top_p": None}, "top_p"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.0}, "seed"),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(fields: dict[str, object], named: str) -> None:
    with pytest.raises(SamplingError, match=named):
        Sampling.from_json(json.dumps({"temperature": 1, "top_p": 1, "seed": 1} | fields))


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"temperature": 1}', "[" * 100_000])
def test_what_is_not_sampling_is_refused(text: str) -> None:
    with pytest.raises(SamplingError):
        Sampling.from_json(text)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": "1"}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": [5, 101]}, "logit_bias"),
        ({"logit_bias": [-5, 1]}, "logit_bias"),
        ({"logit_bias": [5.0, 1]}, "logit_bias"),
        ({"logit_bias": [5, None]}, "logit_bias"),
        ({"logit_bias": [5, 1, 5, 2]}, "logit_bias"),
        ({"logit_bias": [number // 2 for number in range(602)]}, "logit_bias"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": True}, "top_logprobs"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"beams": 4}, "beams"),
    ],
)
def test_what_came_by_the_wire_is_checked_by_name(fields: dict[str, object], named: str) -> None:
    with pytest.raises(SamplingError, match=named):
        Sampling.from_json(json.dumps({"temperature": 1, "top_p": 1, "seed": 1} | fields))


def test_all_that_can_be_asked_for_comes_back_from_json() -> None:
    sampling = Sampling(0.5, 0.9, 3, 40, 0.05, 0.5, -0.5, 1.1, ((7, -100), (9, 1.5)), 5, 12)
    assert Sampling.from_json(sampling.to_json()) == sampling
    assert '"logit_bias":[7,-100,9,1.5]' in sampling.to_json()


def choice(sampling: Sampling, before: list[int] | None = None, logits: torch.Tensor = LOGITS) -> int:
    return sample(logits, sampling, 3, before or [])


def test_a_bias_bans_a_token_or_makes_it_the_only_one() -> None:
    assert choice(replace(GREEDY, logit_bias=((0, -100.0),))) == 1
    assert choice(replace(GREEDY, logit_bias=((4, 100.0),))) == 4
    assert frequencies(LOGITS, replace(warm(), logit_bias=((0, -100.0),)), 500)[0] == 0
    with pytest.raises(SamplingError, match="logit_bias names token 5"):
        choice(replace(GREEDY, logit_bias=((5, 1.0),)))


def test_presence_and_frequency_count_the_answer_and_not_the_prompt() -> None:
    logits = torch.tensor([3.0, 2.0, 1.0])
    presence = replace(GREEDY, presence_penalty=1.5, prompt_tokens=2)
    assert choice(presence, [0, 0], logits) == 0
    assert choice(presence, [0, 0, 0], logits) == 1
    frequency = replace(GREEDY, frequency_penalty=0.6, prompt_tokens=1)
    assert choice(frequency, [0, 0], logits) == 0
    assert choice(frequency, [0, 0, 0], logits) == 1
    assert choice(replace(GREEDY, frequency_penalty=-2.0), [2, 2], logits) == 2


def test_a_repetition_penalty_is_transformers() -> None:
    logits = torch.randn(200, generator=torch.Generator().manual_seed(1))
    before = [3, 5, 5, 150, 199]
    for penalty in (0.7, 1.3, 5.0):
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([before]), logits.clone().unsqueeze(0))[0]
        assert choice(replace(GREEDY, repetition_penalty=penalty), before, logits) == int(theirs.argmax())
        sampling = replace(warm(), repetition_penalty=penalty)
        assert [sample(logits, sampling, n, before) for n in range(50)] == [
            sample(theirs, warm(), n) for n in range(50)
        ]


def test_logits_are_left_as_they_were() -> None:
    logits = LOGITS.clone()
    choice(replace(GREEDY, presence_penalty=1.0, repetition_penalty=2.0, logit_bias=((0, -5.0),)), [0, 1], logits)
    assert torch.equal(logits, LOGITS)


def test_log_probabilities_are_the_models_own_whatever_changes_the_choice() -> None:
    changed = Sampling(0.5, 0.1, 1, logit_bias=((3, 100.0),), top_logprobs=2)
    [sampled] = verify(LOGITS.unsqueeze(0), changed, 0, [])
    assert sampled.token_id == 3
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(math.log(0.07), abs=1e-6)
    assert [token_id for token_id, _ in sampled.logprobs.top] == [0, 1]
    assert [value for _, value in sampled.logprobs.top] == pytest.approx([math.log(0.5), math.log(0.25)], abs=1e-6)


def test_more_log_probabilities_than_tokens_are_all_and_what_cannot_come_has_a_number() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    [sampled] = verify(logits, replace(GREEDY, top_logprobs=20), 0, [])
    assert sampled.logprobs is not None
    assert sampled.logprobs.top[-1] == (1, -9999.0)
    assert [token_id for token_id, _ in sampled.logprobs.top] == [0, 2, 1]
    assert verify(logits, replace(GREEDY, top_logprobs=0), 0, [])[0].logprobs == TokenLogprobs(math.log(0.5))


ASKED = [GREEDY, warm(), replace(warm(0.6), top_k=5, repetition_penalty=1.4, frequency_penalty=0.3, prompt_tokens=2)]


@pytest.mark.parametrize("sampling", ASKED, ids=["greedy", "warm", "penalised"])
@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_drafts_are_accepted_up_to_the_first_that_would_not_have_been_chosen(
    sampling: Sampling, num_right: int
) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(5)) * 2
    before = [1, 2, 3]
    right: list[int] = []
    for row in logits:
        right.append(sample(row, sampling, len(before) + len(right), before + right))
    drafts = [*right[:num_right], *((token_id + 1) % 50 for token_id in right[num_right:3])]

    found = verify(logits, sampling, len(before), before + drafts, drafts)

    assert [one.token_id for one in found] == right[: num_right + 1]


def test_logits_after_a_draft_that_was_wrong_are_not_looked_at() -> None:
    logits = torch.stack([LOGITS, torch.full((5,), math.nan)])
    assert [one.token_id for one in verify(logits, GREEDY, 3, [1, 2, 3, 4], [4])] == [0]
    with pytest.raises(SamplingError, match="not numbers"):
        verify(logits, GREEDY, 3, [1, 2, 3, 0], [0])


class Only:
    """A constraint that allows some tokens, and keeps what it was asked."""

    def __init__(self, *allowed: int) -> None:
        self._allowed = list(allowed)
        self.asked: list[list[int]] = []
        self.best: list[int] = []

    def forbid(self, row: Logits, ids: Sequence[int]) -> None:
        self.asked.append(list(ids))
        self.best.append(int(row.argmax()))
        row[[one for one in range(len(row)) if one not in self._allowed]] = -math.inf


HELD = replace(GREEDY, grammar="0f" * 16, prompt_tokens=2)


def test_only_what_a_grammar_allows_is_chosen() -> None:
    assert verify(LOGITS.unsqueeze(0), HELD, 3, [7, 7, 1], (), Only(2, 4))[0].token_id == 2
    warm_ones = (
        verify(LOGITS.unsqueeze(0), replace(HELD, temperature=2.0), at, [], (), Only(2, 4)) for at in range(40)
    )
    assert {one.token_id for [one] in warm_ones} == {2, 4}


def test_a_grammar_comes_after_penalties_and_biases_and_before_what_narrows_the_choice() -> None:
    only = Only(3, 4)
    changed = replace(HELD, logit_bias=((1, 100.0),), frequency_penalty=2.0, temperature=1.0, top_k=1, min_p=1.0)

    assert verify(LOGITS.unsqueeze(0), changed, 4, [7, 7, 3, 3], (), only)[0].token_id == 4
    assert only.best == [1]


def test_a_grammar_looks_at_the_answer_alone_and_after_each_draft() -> None:
    only = Only(1)
    found = verify(torch.stack([LOGITS] * 3), HELD, 4, [7, 7, 3, 3, 1, 0], [1, 0], only)

    assert [one.token_id for one in found] == [1, 1]
    assert only.asked == [[3, 3], [3, 3, 1]]


def test_log_probabilities_are_the_models_own_also_of_what_a_grammar_has_chosen() -> None:
    [sampled] = verify(LOGITS.unsqueeze(0), replace(HELD, top_logprobs=1), 2, [7, 7], (), Only(4))
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(math.log(0.03), abs=1e-6)
    assert [token_id for token_id, _ in sampled.logprobs.top] == [0]


def test_what_the_model_thinks_impossible_is_not_chosen_because_nothing_else_is_allowed() -> None:
    with pytest.raises(SamplingError, match="thinks nothing possible"):
        verify(torch.tensor([[0.0, -math.inf]]), HELD, 2, [7, 7], (), Only(1))


@pytest.mark.parametrize("digest", ["0F" * 16, "0f" * 15, "x" * 32, 7, None])
def test_a_grammar_is_named_by_its_digest(digest: object) -> None:
    assert Sampling.from_json(HELD.to_json()) == HELD
    with pytest.raises(SamplingError, match="grammar must be 32 hex digits") as error:
        Sampling.from_json(json.dumps({"temperature": 0, "top_p": 1, "seed": 0, "grammar": digest}))
    assert error.value.param == "grammar"


DRAWS = [42153, 1935, 42692, 49894, 26828, 24805, 952, 43220, 43552, 40077, 17536, 46811]
