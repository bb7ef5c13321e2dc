"""A shard: some of a model's layers, in memory, and the forward pass through them.

Two executors keep one contract. `nodes/modules` runs transformers' own modules: every family, and the reference.
`nodes/lean` runs Llama-shaped blocks with as little as they need; it is taken where it covers the model's config.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

logger = logging.getLogger(__name__)


class ShardCache(Protocol):
    """The keys and values of one session for a hop's layers."""

    @property
    def num_tokens(self) -> int: ...

    def crop_to(self, num_tokens: int) -> None: ...


@dataclass(slots=True)
class Row:
    """One session's part of a forward pass.

    `inputs`: hidden states [tokens, width] before the hop's first layer, or token ids where that is layer 0.
    `position`: index of the first token, which must be the cache's length.
    `num_logits`: at the tail, of how many of the last tokens logits are wanted.
    """

    cache: Any  # a ShardCache of the same shard and hop
    position: int
    inputs: torch.Tensor | Sequence[int]
    num_logits: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.inputs)


class Shard(ABC):
    """Layers [start_layer, end_layer) of a model. Not safe for threads: one engine owns it."""

    executor: str  # the name of the implementation

    def __init__(self, config: Any, start_layer: int, end_layer: int, dtype: str, weights: str = "dense") -> None:
        self.start_layer, self.end_layer, self.dtype, self.weights = start_layer, end_layer, dtype, weights
        self.num_layers, self.width = int(config.num_hidden_layers), int(config.hidden_size)
        self.vocab_size, self.context_length = int(config.vocab_size), int(config.max_position_embeddings)
        self.is_head, self.is_tail = start_layer == 0, end_layer == self.num_layers

    @abstractmethod
    def new_cache(self, start_layer: int, end_layer: int, room_tokens: int = 0) -> ShardCache:
        """An empty cache for a hop's layers. `room_tokens`: what the session has reserved; it may grow beyond."""

    @abstractmethod
    def forward(self, rows: Sequence[Row], start_layer: int, end_layer: int) -> list[torch.Tensor]:
        """Each row through layers [start_layer, end_layer): hidden states [tokens, width] in the shard's dtype, or
        after the model's last layer float32 logits [num_logits, vocab_size].

        Rows of one call are of different sessions; each row's cache has its tokens afterwards. Inputs are left as they
        are, and no later call writes over an output: it may be answered again. The caller is in torch.inference_mode().
        Multiplied in the shard's dtype, logits then cast: what transformers' generate does.
        """

    def check_rows(self, rows: Sequence[Row], start_layer: int, end_layer: int) -> None:
        """Raises ValueError for layers that aren't here, and for a row whose cache isn't theirs or ends elsewhere."""
        self.check_hop(start_layer, end_layer)
        for row in rows:
            hop = (row.cache.start_layer, row.cache.end_layer)
            if hop != (start_layer, end_layer) or row.cache.num_tokens != row.position:
                raise ValueError("the cache is of other layers, or doesn't end where the step starts")

    def check_hop(self, start_layer: int, end_layer: int) -> None:
        if not self.start_layer <= start_layer < end_layer <= self.end_layer:
            held = f"{self.start_layer}:{self.end_layer}"
            raise ValueError(f"layers {start_layer}:{end_layer} aren't in the shard {held}")
