"""The lean executor gives the ids of transformers' own generation, cut or whole, alone or beside other sessions."""

from __future__ import annotations

import pytest
import torch

from nodes.executors import load_shard
from nodes.lean.shard import LeanShard
from nodes.modules.shard import ModuleShard
from nodes.shard import Row
from nodes.weights import ModelError, ModelFolder
from tests.nodes.greedy import chunks_of, generated, greedy_ids, load_hops, logits_of_steps
from tests.nodes.modules.test_shard import CUTS, folder_of, some_ids

LEAN = "lean"


@pytest.mark.parametrize("name", ["tiny", "tiny_tied"])
@pytest.mark.parametrize("prompt_tokens", [1, 15, 16, 17, 47, 200])
def test_greedy_ids_equal_generate_in_float32(name: str, prompt_tokens: int, request: pytest.FixtureRequest) -> None:
    folder, prompt = folder_of(name, request), some_ids(prompt_tokens)
    expected, logits = generated(folder, prompt, 24, 16, "float32")
    hops = load_hops(folder, [(0, 1), (1, 6)], "float32", LEAN)
    assert greedy_ids(hops, prompt, 24, 16) == expected
    steps = [*chunks_of(prompt, 16), *((number,) for number in expected[:-1])]
    ours = torch.stack(list(logits_of_steps(hops, steps)))[-len(expected) :]
    assert torch.allclose(ours, logits, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tiny", "tiny_tied"])
@pytest.mark.parametrize("cut", CUTS)
def test_split_equals_whole(name: str, cut: list[tuple[int, int]], dtype: str, request: pytest.FixtureRequest) -> None:
    folder = folder_of(name, request)
    steps = [*chunks_of(some_ids(37), 16), *((number,) for number in some_ids(8, seed=8))]
    whole = logits_of_steps(load_hops(folder, [(0, 6)], dtype, LEAN), steps)
    parts = logits_of_steps(load_hops(folder, cut, dtype, LEAN), steps)
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))


def test_a_hop_may_start_and_end_inside_its_shard(tiny_tied: ModelFolder) -> None:
    steps = [*chunks_of(some_ids(20), 16), *((number,) for number in some_ids(5, seed=8))]
    shards = [load_shard(tiny_tied, *layers, "float32", executor=LEAN) for layers in ((0, 4), (1, 5), (2, 6))]
    hops = [(shards[0], 0, 3), (shards[1], 3, 4), (shards[2], 4, 6)]
    whole = logits_of_steps(load_hops(tiny_tied, [(0, 6)], "float32", LEAN), steps)
    assert all(torch.equal(one, other) for one, other in zip(whole, logits_of_steps(hops, steps), strict=True))


@torch.inference_mode()
def test_rows_of_several_sessions_get_what_they_get_alone(tiny: ModelFolder) -> None:
    shard = load_shard(tiny, 0, 6, "float32", executor=LEAN)
    prompts = [some_ids(length, seed=length) for length in (3, 1, 40, 17)]
    alone, together = ([shard.new_cache(0, 6) for _ in prompts] for _ in range(2))
    pairs = list(zip(alone, together, prompts, strict=True))
    for ids, num_logits in ((lambda prompt: prompt, 2), (lambda prompt: prompt[:1], 1), (lambda _: (7, 8, 9), 3)):
        wanted = [
            shard.forward([Row(cache, cache.num_tokens, ids(prompt), num_logits)], 0, 6)[0]
            for cache, _, prompt in pairs
        ]
        rows = [Row(cache, cache.num_tokens, ids(prompt), num_logits) for _, cache, prompt in pairs]
        for ours, expected in zip(shard.forward(rows, 0, 6), wanted, strict=True):
            assert ours.shape == expected.shape
            assert torch.allclose(ours, expected, atol=1e-3)


@torch.inference_mode()
def test_what_comes_in_is_left_as_it_is_and_what_is_cropped_is_written_again(tiny: ModelFolder) -> None:
    shard, hidden = load_shard(tiny, 2, 4, "float32", executor=LEAN), torch.randn(5, 64)
    cache, kept = shard.new_cache(2, 4), hidden.clone()
    [first] = shard.forward([Row(cache, 0, hidden)], 2, 4)
    cache.crop_to(3)
    [again] = shard.forward([Row(cache, 3, hidden[3:])], 2, 4)
    assert torch.equal(hidden, kept)
    assert torch.allclose(again, first[3:], atol=1e-5)


def test_auto_takes_it_where_it_covers_the_model(tiny: ModelFolder) -> None:
    assert isinstance(load_shard(tiny, 1, 2), LeanShard)
    assert isinstance(load_shard(tiny, 1, 2, executor="transformers"), ModuleShard)
    with pytest.raises(ModelError, match="auto, lean, transformers"):
        load_shard(tiny, 1, 2, executor="fast")
