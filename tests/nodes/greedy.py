"""Loops over shards without any node around them, and transformers' own generation to compare with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from nodes.activations import DTYPES
from nodes.executors import load_shard
from nodes.shard import Row, Shard
from nodes.weights import ModelFolder

Hop = tuple[Shard, int, int]


def load_hops(
    folder: ModelFolder, layers: Sequence[tuple[int, int]], dtype: str, executor: str = "transformers"
) -> list[Hop]:
    return [(load_shard(folder, start, end, dtype, executor=executor), start, end) for start, end in layers]


def chunks_of(ids: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(ids[start : start + size]) for start in range(0, len(ids), size)]


class Route:
    """Hops in a row with their caches."""

    def __init__(self, hops: Sequence[Hop]) -> None:
        self._hops = [(shard, shard.new_cache(start, end), start, end) for shard, start, end in hops]
        self.num_tokens = 0

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """The last token's logits, activations handed from hop to hop."""
        return self.step(token_ids)[0]

    @torch.inference_mode()
    def step(self, token_ids: Sequence[int], num_logits: int = 1) -> torch.Tensor:
        """logits: [num_logits, vocab_size] of the last tokens"""
        output: torch.Tensor | Sequence[int] = token_ids
        for shard, cache, start, end in self._hops:
            [output] = shard.forward([Row(cache, self.num_tokens, output, num_logits)], start, end)
        self.num_tokens += len(token_ids)
        assert isinstance(output, torch.Tensor)
        return output

    def crop_to(self, num_tokens: int) -> None:
        for _, cache, _, _ in self._hops:
            cache.crop_to(num_tokens)
        self.num_tokens = num_tokens


@torch.inference_mode()
def steps_together(routes: Sequence[Route], steps: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """One step of each route, all of them in one forward pass of each hop; logits [tokens, vocab_size] of each."""
    inputs: list[Any] = [*steps]
    for number, (shard, _, start, end) in enumerate(routes[0]._hops):
        places = [(route._hops[number][1], route.num_tokens) for route in routes]
        rows = [Row(*place, given, len(ids)) for place, given, ids in zip(places, inputs, steps, strict=True)]
        inputs = [*shard.forward(rows, start, end)]
    for route, ids in zip(routes, steps, strict=True):
        route.num_tokens += len(ids)
    return inputs


def logits_of_steps(hops: Sequence[Hop], steps: Sequence[Sequence[int]]) -> Iterator[torch.Tensor]:
    route = Route(hops)
    return (route.logits(step) for step in steps)


def greedy_ids(hops: Sequence[Hop], prompt: Sequence[int], num_tokens: int, chunk: int) -> list[int]:
    route, ids = Route(hops), list(prompt)
    while len(ids) < len(prompt) + num_tokens:
        logits = route.logits(ids[route.num_tokens : route.num_tokens + chunk])
        if route.num_tokens == len(ids):
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


@torch.inference_mode()
def generated(
    folder: ModelFolder, prompt: Sequence[int], num_tokens: int, chunk: int, dtype: str
) -> tuple[list[int], torch.Tensor]:
    """(ids, float32 logits [tokens, vocab]) of transformers' generate on the whole model, fed the same chunks."""
    model = AutoModelForCausalLM.from_pretrained(folder.path, dtype=DTYPES[dtype])
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        eos_token_id=-1,  # no text ends early
        do_sample=False,
        prefill_chunk_size=chunk,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits).float()
