"""The cache with room gives attention what a concatenated one would."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicLayer

from nodes.modules.cache import HopCache, RoomyLayer

Pair = tuple[torch.Tensor, torch.Tensor]


def states(num_tokens: int) -> Pair:
    """keys, values: [1, 2, num_tokens, 4]"""
    return torch.randn(1, 2, num_tokens, 4), torch.randn(1, 2, num_tokens, 4)


def test_it_returns_what_transformers_own_layer_returns() -> None:
    roomy, plain = RoomyLayer(0), DynamicLayer()  # type: ignore[no-untyped-call]
    for num_tokens in (5, 1, 1, 200, 1):  # past the least room, twice
        step = states(num_tokens)
        ours, theirs = roomy.update(*step), plain.update(*step)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        assert roomy.get_seq_length() == plain.get_seq_length()
        assert roomy.get_mask_sizes(3) == plain.get_mask_sizes(3)


def test_a_token_does_not_move_those_before_it() -> None:
    layer = RoomyLayer(300)
    before = layer.update(*states(7))[0].data_ptr()
    for _ in range(290):
        keys, _ = layer.update(*states(1))
    assert keys.data_ptr() == before


def test_what_is_cropped_is_written_again() -> None:
    cache = HopCache(0, 1)
    first, second, other = states(5), states(3), states(2)
    cache.update(*first, 0)
    cache.update(*second, 0)
    cache.crop_to(5)
    assert cache.num_tokens == 5
    keys, values = cache.update(*other, 0)
    assert torch.equal(keys, torch.cat([first[0], other[0]], dim=2))
    assert torch.equal(values, torch.cat([first[1], other[1]], dim=2))


def test_cropping_to_more_than_there_is_changes_nothing() -> None:
    cache = HopCache(0, 1)
    cache.update(*states(5), 0)
    cache.crop_to(9)
    assert cache.num_tokens == 5


def test_the_models_own_crop_counts_what_goes() -> None:
    layer = RoomyLayer(0)
    layer.update(*states(5))
    layer.crop(-2)
    assert layer.get_seq_length() == 3


def test_a_hop_is_addressed_by_the_models_layer_numbers_and_measured_at_its_first() -> None:
    cache = HopCache(12, 14)
    assert cache.get_seq_length() == 0
    cache.update(*states(4), 12)
    assert cache.get_seq_length() == 4
    assert cache.get_mask_sizes(1, 0) == (5, 0)
    step = states(4)
    assert torch.equal(cache.update(*step, 13)[0], step[0])  # another layer, with nothing in it yet
