"""What filters keep, and that a short way to the draw ends where the long one does."""

from __future__ import annotations

import numpy as np
import pytest

from nodes.draws import Floats, draw, gumbel, highest, kept


def scaled_logits(seed: int, size: int = 3000, spread: float = 3.0) -> Floats:
    values: Floats = np.random.default_rng(seed).normal(size=size) * spread
    values -= values.max()
    return values


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 20.0])
def test_the_draw_is_the_highest_of_all_logits_with_noise(spread: float) -> None:
    for seed in range(100):
        scaled = scaled_logits(seed, spread=spread)
        noisy = scaled + gumbel(seed, seed + 7, np.arange(len(scaled), dtype=np.uint64))
        assert draw(scaled, seed, seed + 7) == int(noisy.argmax())


def test_top_k_keeps_the_highest_and_of_equals_the_lower_ids() -> None:
    assert highest(np.array([1.0, 3.0, 2.0, 3.0]), 2).tolist() == [1, 3]
    assert highest(np.zeros(6), 3).tolist() == [0, 1, 2]
    assert highest(np.array([1.0, 2.0]), 5).tolist() == [0, 1]
    assert {draw(scaled_logits(0, 50), seed, 0, top_k=1) for seed in range(20)} == {int(scaled_logits(0, 50).argmax())}


def test_min_p_keeps_what_is_near_the_most_probable() -> None:
    scaled = np.log(np.array([1.0, 0.5, 0.2, 0.05]))
    assert kept(scaled, 0, 1.0, 0.1).tolist() == [0, 1, 2]
    assert kept(scaled, 0, 1.0, 1.0).tolist() == [0]


def test_top_p_counts_what_top_k_has_left() -> None:
    scaled = np.log(np.array([0.4, 0.3, 0.2, 0.1]) / 0.4)
    assert kept(scaled, 0, 0.6, 0.0).tolist() == [0, 1]
    assert kept(scaled, 2, 0.55, 0.0).tolist() == [0]  # 0.4 of 0.7


def test_filters_together_keep_what_each_keeps() -> None:
    scaled = scaled_logits(1)
    ids = set(kept(scaled, 50, 0.9, 0.02).tolist())
    assert ids
    assert ids <= set(highest(scaled, 50).tolist()) & set(kept(scaled, 0, 1.0, 0.02).tolist())


def test_a_nucleus_wider_than_usual_is_cut_like_a_full_sort_would() -> None:
    scaled = scaled_logits(2, size=20_000, spread=0.1)
    probabilities = np.exp(scaled) / np.exp(scaled).sum()
    order = np.argsort(-probabilities, kind="stable")
    count = int((np.cumsum(probabilities[order]) < 0.5).sum()) + 1
    assert count > 1024
    assert kept(scaled, 0, 0.5, 0.0).tolist() == sorted(order[:count].tolist())
