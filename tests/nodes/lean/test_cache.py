"""What is written into a lean cache stays, whatever room it is given."""

from __future__ import annotations

import torch

from nodes.lean.cache import LeanCache

LAYERS, HEADS, WIDTH = 2, 3, 4


def new_cache(room_tokens: int = 0) -> LeanCache:
    return LeanCache(5, 5 + LAYERS, HEADS, WIDTH, torch.float32, room_tokens)


def write(cache: LeanCache, num_tokens: int) -> torch.Tensor:
    """[layers, tokens, 2 * heads, width]"""
    start, states = cache.num_tokens, torch.randn(LAYERS, num_tokens, 2 * HEADS, WIDTH)
    cache.grow_to(start + num_tokens)
    for place, layer in zip(cache.places(start, start + num_tokens), states, strict=True):
        place.copy_(layer)
    cache.num_tokens += num_tokens
    return states


def test_it_gives_each_layer_its_keys_and_values() -> None:
    cache = new_cache()
    written = torch.cat([write(cache, count) for count in (5, 1, 200, 1)], 1)  # past the least room
    for layer in range(LAYERS):
        seen = torch.cat((cache.keys(2, 207)[layer][0], cache.values(2, 207)[layer][0]))
        assert torch.equal(seen, written[layer, 2:].transpose(0, 1))


def test_within_its_room_nothing_moves() -> None:
    cache = new_cache(300)
    before = cache.keys(0, 1)[0].data_ptr()
    for _ in range(30):
        write(cache, 10)
    assert cache.keys(0, 1)[0].data_ptr() == before


def test_what_is_cropped_is_written_again() -> None:
    cache = new_cache()
    first = write(cache, 5)
    cache.crop_to(3)
    cache.crop_to(4)  # there are only three
    second = write(cache, 1)
    expected = torch.cat((first[:, :3], second), 1)
    assert cache.num_tokens == 4
    assert torch.equal(cache.values(0, 4)[1][0], expected[1, :, HEADS:].transpose(0, 1))
