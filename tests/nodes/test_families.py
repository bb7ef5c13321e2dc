"""Every family, cut at odd layers: bit for bit what transformers' whole model computes when it is fed the same steps.

Two shards share five layers, one of them without the head, one without the tail; the route of three hops ends one hop
inside the first shard, and ends and starts one inside the second. Steps are chunks, single tokens, and a step of drafts
of which some are taken back. The lean executor, where it covers a model, gives the same ids in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from nodes import memory
from nodes.activations import DTYPES
from nodes.executors import load_shard
from nodes.lean import shard as lean
from nodes.shard import Row
from nodes.sources import open_model
from nodes.weights import FAMILIES
from tests.nodes.families import NUM_LAYERS, VARIANTS, VOCAB, Variant, make
from tests.nodes.greedy import Hop, Route, steps_together
from tests.nodes.modules.test_shard import some_ids

IDS = some_ids(40, VOCAB - 10)
# (first position, number of tokens); a position before the last one takes tokens back
STEPS = ((0, 16), (16, 5), (21, 1), (22, 4), (23, 1), (24, 2))
PROMPTS = (3, 1, 20)  # tokens of sessions that then go on together


class Made:
    """A family's model, and its hops loaded once for each executor and dtype."""

    def __init__(self, variant: Variant, path: Path) -> None:
        self.model = make(variant, path)
        self.dtypes = ["float32"] if variant.note else ["float32", "bfloat16"]  # each family once
        self.folder = open_model(path)
        self._hops: dict[tuple[str, str], list[Hop]] = {}
        self._whole: dict[str, list[torch.Tensor]] = {}

    @property
    def executors(self) -> list[str]:
        return ["transformers", "lean"] if lean.covers(self.folder.config) else ["transformers"]

    def hops(self, dtype: str, executor: str = "transformers") -> list[Hop]:
        if (dtype, executor) not in self._hops:
            head, tail = (
                load_shard(self.folder, *layers, dtype, executor=executor) for layers in ((0, 3), (1, NUM_LAYERS))
            )
            self._hops[dtype, executor] = [(head, 0, 1), (tail, 1, 3), (tail, 3, NUM_LAYERS)]
        return self._hops[dtype, executor]

    def whole(self, dtype: str) -> list[torch.Tensor]:
        """What transformers' whole model answers to STEPS."""
        if dtype not in self._whole:
            is_made = dtype == "float32"
            model = (
                self.model if is_made else AutoModelForCausalLM.from_pretrained(self.folder.path, dtype=DTYPES[dtype])
            )
            self._whole[dtype] = list(logits_of_whole(model, STEPS))
        return self._whole[dtype]


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp("family"))


@torch.inference_mode()
def logits_of_whole(model: Any, steps: Sequence[tuple[int, int]]) -> Iterator[torch.Tensor]:
    """[tokens, vocab_size] of each step. The cache keeps every token: the mask alone does the window."""
    cache: Any = DynamicCache()
    for position, num_tokens in steps:
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[:, :, :position], layer.values[:, :, :position]
        ids = torch.tensor([IDS[position : position + num_tokens]])
        yield model(input_ids=ids, cache=cache, use_cache=True).logits[0].float()


def logits_of_route(hops: Sequence[Hop], steps: Sequence[tuple[int, int]]) -> Iterator[torch.Tensor]:
    route = Route(hops)
    for position, num_tokens in steps:
        route.crop_to(position)
        yield route.step(IDS[position : position + num_tokens], num_tokens)


def test_every_family_that_is_served_is_proved_here_and_no_other() -> None:
    assert set(FAMILIES) == {variant.family for variant in VARIANTS}


def test_cut_it_equals_the_whole(made: Made) -> None:
    for dtype in made.dtypes:
        pairs = zip(made.whole(dtype), logits_of_route(made.hops(dtype), STEPS), strict=True)
        for step, (whole, parts) in zip(STEPS, pairs, strict=True):
            assert torch.equal(whole, parts), f"{dtype}, step {step}: {(whole - parts).abs().max()}"


def test_every_executor_gives_the_same_ids(made: Made) -> None:
    for executor in made.executors[1:]:  # the first is proved above
        parts = logits_of_route(made.hops("float32", executor), STEPS)
        for expected, ours in zip(made.whole("float32"), parts, strict=True):
            assert torch.equal(ours.argmax(1), expected.argmax(1))
            assert torch.allclose(ours, expected, atol=1e-3)


def test_sessions_that_go_on_together_get_what_they_get_alone(made: Made) -> None:
    for executor in made.executors:
        (head, *_), (tail, *_), _ = made.hops("float32", executor)
        hops: list[Hop] = [(head, 0, 2), (tail, 2, NUM_LAYERS)]
        alone, together = ([Route(hops) for _ in PROMPTS] for _ in range(2))
        for route, num_tokens in zip([*alone, *together], PROMPTS * 2, strict=True):
            route.step(IDS[:num_tokens])
        for counts in ((1, 4, 2), (3, 1, 1)):
            steps = [IDS[route.num_tokens :][:count] for route, count in zip(alone, counts, strict=True)]
            wanted = [route.step(ids, len(ids)) for route, ids in zip(alone, steps, strict=True)]
            for ours, expected in zip(steps_together(together, steps), wanted, strict=True):
                assert torch.equal(ours.argmax(1), expected.argmax(1))
                assert torch.allclose(ours, expected, atol=1e-3)
            for route in (alone[1], together[1]):
                route.crop_to(route.num_tokens - counts[1] + 1)  # drafts that weren't taken


@torch.inference_mode()
def test_a_token_takes_the_memory_that_is_reckoned_with(made: Made) -> None:
    shard, _, _ = made.hops("float32")[1]
    cache: Any = shard.new_cache(1, 3)
    shard.forward([Row(cache, 0, torch.randn(1, shard.width))], 1, 3)
    taken = sum(states[:, :, :1].nbytes for layer in cache.layers for states in (layer.keys, layer.values))
    assert memory.cache_bytes_per_token(made.folder.config, 2, "float32") == taken
