"""One block of the lean executor, and what its layers are told of a forward pass. The hot path: every call counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from nodes.lean.cache import LeanCache
from nodes.lean.config import LeanConfig
from nodes.lean.rope import Rope, turn
from nodes.linear import Linear


@dataclass(frozen=True, slots=True)
class Sight:
    """What one row's tokens see in layers of one kind. For each layer of the hop keys, values; a mask for all."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    mask: torch.Tensor | None  # [group * tokens, tokens seen], added to the scores; None: all is seen


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass, the same for all layers: where each row writes and what it sees."""

    sizes: list[int]  # tokens of each row
    turns: torch.Tensor  # [tokens, 1, channels / 2] complex
    places: list[tuple[torch.Tensor, ...]]  # of each row, for each layer
    sights: dict[int | None, list[Sight]]  # by window, of each row


def prepare(
    rows: Sequence[tuple[LeanCache, int, int]], rope: Rope, config: LeanConfig, windows: set[int | None]
) -> Pass:
    """Of rows (cache, first position, number of tokens); makes room in their caches."""
    for cache, position, num_tokens in rows:
        cache.grow_to(position + num_tokens)
    turns = [rope.turns(position, position + num_tokens) for _, position, num_tokens in rows]
    group = config.num_heads // config.num_kv_heads
    return Pass(
        sizes=[num_tokens for _, _, num_tokens in rows],
        turns=(turns[0] if len(turns) == 1 else torch.cat(turns)).unsqueeze(1),
        places=[cache.places(position, position + num_tokens) for cache, position, num_tokens in rows],
        sights={window: [_sight(*row, window, group) for row in rows] for window in windows},
    )


def _sight(cache: LeanCache, position: int, num_tokens: int, window: int | None, group: int) -> Sight:
    end = position + num_tokens
    start = 0 if window is None else max(0, position + 1 - window)
    mask = None
    if num_tokens > 1:
        ages = torch.arange(position, end)[:, None] - torch.arange(start, end)
        hidden = (ages < 0) if window is None else (ages < 0) | (ages >= window)
        mask = torch.zeros(hidden.shape, dtype=cache.dtype).masked_fill_(hidden, -math.inf).repeat(group, 1)
    return Sight(cache.keys(start, end), cache.values(start, end), mask)


class Block:
    """The weights of one layer and the way through them."""

    def __init__(
        self,
        config: LeanConfig,
        number: int,
        *,
        attention_norm: RmsNorm,
        qkv: Linear,
        qk_norm: RmsNorm | None,  # of queries' heads, then keys'
        output: Linear,
        mlp_norm: RmsNorm,
        gate_up: Linear,
        down: Linear,
    ) -> None:
        self._config, self.window, self._is_rotary = config, config.windows[number], config.rotary[number]
        self._attention_norm, self._qk_norm, self._mlp_norm = attention_norm, qk_norm, mlp_norm
        self._qkv, self._output, self._gate_up, self._down = qkv, output, gate_up, down
        self._num_qk_heads = config.num_heads + config.num_kv_heads

    def __call__(self, hidden: torch.Tensor, layer: int, work: Pass) -> torch.Tensor:
        """hidden: [tokens, width], left as it is; layer: counted from the hop's first."""
        config = self._config
        normed = self._attention_norm(hidden)
        hidden = hidden + self._scaled(self._output(self._attend(self._qkv(normed), layer, work)))
        normed = self._mlp_norm(hidden)
        gate, up = self._gate_up(normed).chunk(2, 1)
        return hidden + self._scaled(self._down(config.activation(gate).mul_(up)))

    def _scaled(self, change: torch.Tensor) -> torch.Tensor:
        scale = self._config.residual_scale
        return change if scale == 1.0 else change * scale

    def _attend(self, qkv: torch.Tensor, layer: int, work: Pass) -> torch.Tensor:
        """qkv: [tokens, (heads + 2 * kv_heads) * head_dim], not used again; [tokens, heads * head_dim]"""
        config = self._config
        heads = qkv.view(len(qkv), -1, config.head_dim)
        if self._qk_norm is not None:
            queries_keys = heads[:, : self._num_qk_heads]
            queries_keys.copy_(self._qk_norm(queries_keys))
        if self._is_rotary:
            heads = heads.float()
            turn(heads[:, : self._num_qk_heads, : 2 * work.turns.shape[-1]], work.turns)
        queries, keys_values = heads.split_with_sizes((config.num_heads, 2 * config.num_kv_heads), 1)
        queries, sights = queries.to(qkv.dtype), work.sights[self.window]
        if len(sights) == 1:
            work.places[0][layer].copy_(keys_values)
            return self._look(queries, sights[0], layer)
        for place, row in zip(work.places, keys_values.split_with_sizes(work.sizes), strict=True):
            place[layer].copy_(row)
        rows = zip(queries.split_with_sizes(work.sizes), sights, strict=True)
        return torch.cat([self._look(row, sight, layer) for row, sight in rows])

    def _look(self, queries: torch.Tensor, sight: Sight, layer: int) -> torch.Tensor:
        """queries: [tokens, heads, head_dim]; [tokens, heads * head_dim]

        A group's queries share their keys and are asked as if they were more tokens of one head.
        """
        config, num_tokens = self._config, len(queries)
        num_kv_heads, head_dim, scale = config.num_kv_heads, config.head_dim, config.attention_scale
        keys, values = sight.keys[layer], sight.values[layer]
        attend = functional.scaled_dot_product_attention
        if num_tokens == 1:
            return attend(queries.view(1, num_kv_heads, -1, head_dim), keys, values, scale=scale).reshape(1, -1)
        grouped = queries.view(num_tokens, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        asked = grouped.reshape(1, num_kv_heads, -1, head_dim)
        seen = attend(asked, keys, values, attn_mask=sight.mask, scale=scale)
        return seen.view(grouped.shape).permute(2, 0, 1, 3).reshape(num_tokens, -1)


class RmsNorm:
    """x over its root mean square, times a weight, over the last dimension. Half of the operations torch's takes."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        """`weight`: [width], or [heads, width] where heads have weights of their own."""
        root = math.sqrt(weight.shape[-1])
        self._floor = torch.tensor(root * math.sqrt(epsilon))
        # transformers rounds to the shard's dtype before the weight comes in; in float32 the root can be part of it.
        self._is_wide = weight.dtype == torch.float32
        self._weight, self._unit = (weight * root, 1.0) if self._is_wide else (weight, 1 / root)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        length = torch.hypot(torch.linalg.vector_norm(wide, 2, -1, True), self._floor)
        if self._is_wide:
            return (wide / length).mul_(self._weight)
        return (wide / length.mul_(self._unit)).to(x.dtype).mul_(self._weight)
