"""Draws that can be repeated, and that follow the distribution."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch

from nodes.draws import gumbel, nucleus
from nodes.sampling import GREEDY, Sampling, SamplingError, sample

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


DRAWS = [42153, 1935, 42692, 49894, 26828, 24805, 952, 43220, 43552, 40077, 17536, 46811]
