"""The lean executor: Llama-shaped blocks with as few operations as they need.

What `transformers` spends on a token is its own dispatch first and the weights' bytes second. Here projections that see
the same input are one product, positions are turned by one multiplication, keys and values are written where they stay,
and the rows of many sessions share every product. Which families: config.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nodes.activations import DTYPES
from nodes.lean import config as lean_config
from nodes.lean.block import prepare
from nodes.lean.cache import LeanCache
from nodes.lean.rope import Rope
from nodes.lean.weights import LeanWeights, read_weights
from nodes.shard import Row, Shard
from nodes.weights import ModelError, ModelFolder

covers = lean_config.covers


class LeanShard(Shard):
    """Layers [start_layer, end_layer) of a model that the lean executor covers."""

    executor = "lean"

    def __init__(
        self,
        folder: ModelFolder,
        lean: lean_config.LeanConfig,
        layers: tuple[int, int],
        dtype: str,
        held: LeanWeights,
        weights: str,
    ) -> None:
        super().__init__(folder.config, *layers, dtype, weights)
        self._config, self._held, self._dtype = lean, held, DTYPES[dtype]
        self._rope = Rope(folder.config, lean.head_dim, self._dtype)

    def new_cache(self, start_layer: int, end_layer: int, room_tokens: int = 0) -> LeanCache:
        config = self._config
        return LeanCache(start_layer, end_layer, config.num_kv_heads, config.head_dim, self._dtype, room_tokens)

    def forward(self, rows: Sequence[Row], start_layer: int, end_layer: int) -> list[torch.Tensor]:
        self.check_rows(rows, start_layer, end_layer)
        blocks = self._held.blocks[start_layer - self.start_layer : end_layer - self.start_layer]
        inputs = [self._embed(row.inputs) for row in rows]
        sizes = [len(hidden) for hidden in inputs]
        hidden = inputs[0] if len(inputs) == 1 else torch.cat(inputs)
        places = [(row.cache, row.position, size) for row, size in zip(rows, sizes, strict=True)]
        work = prepare(places, self._rope, self._config, {block.window for block in blocks})
        for number, block in enumerate(blocks):
            hidden = block(hidden, number, work)
        for row, size in zip(rows, sizes, strict=True):
            row.cache.num_tokens = row.position + size
        outputs = list(hidden.split_with_sizes(sizes))
        if end_layer < self.num_layers:
            return outputs
        return self._logits([output[len(output) - row.num_logits :] for output, row in zip(outputs, rows, strict=True)])

    def _embed(self, inputs: torch.Tensor | Sequence[int]) -> torch.Tensor:
        """hidden: [tokens, width]"""
        if isinstance(inputs, torch.Tensor):
            return inputs.to(self._dtype)
        if not self.is_head or self._held.embedding is None:
            raise ValueError(f"layers {self.start_layer}–{self.end_layer - 1} have no embedding")
        hidden = self._held.embedding.rows(torch.tensor(list(inputs))).to(self._dtype)
        scale = self._config.embedding_scale
        return hidden if scale == 1.0 else hidden * scale

    def _logits(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """float32 logits [tokens, vocab_size] of each row's hidden states [tokens, width] after the last layer."""
        held, sizes = self._held, [len(row) for row in rows]
        if held.norm is None or held.head is None:
            raise ValueError(f"layers {self.start_layer}–{self.end_layer - 1} have no head")
        if not any(sizes):
            return [torch.empty(0, self.vocab_size) for _ in rows]
        hidden = rows[0] if len(rows) == 1 else torch.cat(rows)
        logits = held.head(held.norm(hidden))
        if self._config.logits_divisor != 1.0:
            logits = logits / self._config.logits_divisor
        return list(logits.float().split_with_sizes(sizes))


def load(folder: ModelFolder, start_layer: int, end_layer: int, dtype: str, weights: str, progress: bool) -> LeanShard:
    """See executors.load_shard, which has checked the arguments."""
    try:
        config = lean_config.read(folder.config)
    except lean_config.NotCovered as error:
        raise ModelError(f"{folder.path}: the lean executor doesn't cover {error}; use --executor auto") from None
    held = read_weights(folder, config, (start_layer, end_layer), DTYPES[dtype], weights, progress)
    return LeanShard(folder, config, (start_layer, end_layer), dtype, held, weights)
