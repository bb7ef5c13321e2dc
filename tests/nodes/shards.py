"""A shard without a model: arithmetic that a test can follow, and that notices every token out of place.

What comes out at a position is a number made of everything up to it, so that a cache that was cropped wrongly, or that
another session wrote into, changes all that follows. Some token ids make the forward pass fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import SimpleNamespace

import torch

from nodes.shard import Row, Shard

NUM_LAYERS = 4
WIDTH = 8
VOCAB = 64
PLAIN_IDS = 60  # ids below are harmless, and only they are sampled
BREAKS, IS_NAN, TAKES_MEMORY = 60, 61, 62

NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


def digest(before: int, value: int) -> int:
    return (before * 31 + value + 7) % 1_000_003  # exact in float32


def digests(values: Sequence[int]) -> list[int]:
    """What a hop computes at each position."""
    return list(accumulate(values, digest, initial=0))[1:]


def next_id(token_ids: Sequence[int]) -> int:
    """What a shard of all layers samples after these."""
    return digests(token_ids)[-1] % PLAIN_IDS


class FakeCache:
    def __init__(self) -> None:
        self.digests: list[int] = []

    @property
    def num_tokens(self) -> int:
        return len(self.digests)

    def crop_to(self, num_tokens: int) -> None:
        del self.digests[num_tokens:]


class FakeShard(Shard):
    """`forwards`: of each call, the tokens of each row. `before`: called at the beginning of each. `change`: what
    becomes of each row's output."""

    executor = "fake"

    def __init__(self, start_layer: int = 0, end_layer: int = NUM_LAYERS) -> None:
        sizes = {"hidden_size": WIDTH, "vocab_size": VOCAB, "max_position_embeddings": 1000}
        super().__init__(SimpleNamespace(num_hidden_layers=NUM_LAYERS, **sizes), start_layer, end_layer, "float32")
        self.forwards: list[list[int]] = []
        self.before: Callable[[], object] = lambda: None
        self.change: Callable[[torch.Tensor], torch.Tensor] = lambda output: output

    def new_cache(self, start_layer: int, end_layer: int, room_tokens: int = 0) -> FakeCache:
        self.check_hop(start_layer, end_layer)
        return FakeCache()

    def forward(self, rows: Sequence[Row], start_layer: int, end_layer: int) -> list[torch.Tensor]:
        self.check_hop(start_layer, end_layer)
        self.forwards.append([row.num_tokens for row in rows])
        self.before()
        assert len({id(row.cache) for row in rows}) == len(rows), "two steps of one session in one forward"
        outputs = [self.change(self._row(row, end_layer)) for row in rows]
        if any(output.isnan().any() for output in outputs):  # the worst executor there could be: it spreads
            return [torch.full_like(output, math.nan) for output in outputs]
        return outputs

    def _row(self, row: Row, end_layer: int) -> torch.Tensor:
        cache, values = row.cache, _values(row.inputs)
        assert cache.num_tokens == row.position, "the cache doesn't end where the step begins"
        for value in values:
            cache.digests.append(digest(cache.digests[-1] if cache.digests else 0, value))
        if BREAKS in values:
            raise RuntimeError("out of paper")
        if TAKES_MEMORY in values:
            raise RuntimeError(NO_MEMORY)
        out = torch.tensor(cache.digests[row.position :], dtype=torch.float32)
        if IS_NAN in values:
            out = torch.full_like(out, math.nan)
        if end_layer < self.num_layers:
            return torch.stack([out] * self.width, dim=1)
        wanted = out[len(out) - row.num_logits :]
        logits = torch.zeros(row.num_logits, self.vocab_size)
        for position, value in enumerate(wanted.tolist()):
            logits[position, 0 if math.isnan(value) else int(value) % PLAIN_IDS] = 1 if not math.isnan(value) else value
        return logits


def _values(inputs: torch.Tensor | Sequence[int]) -> list[int]:
    if isinstance(inputs, torch.Tensor):
        return [int(value) if math.isfinite(value) else 0 for value in inputs[:, 0].tolist()]
    return list(inputs)
