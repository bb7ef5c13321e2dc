"""Several sessions through transformers' modules in one forward pass: tokens in a line, each row attending on its own.

Everything but attention works on single tokens, so tokens of different sessions may stand beside each other. Attention
and its masks are looked up by name, and transformers lets names be added: ours does for each row what the usual one
does for a batch, with the row's own cache, and passes through when there is only one session. No padding, no copies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from nodes.modules.cache import HopCache

SDPA, EAGER = "rows_over_sdpa", "rows_over_eager"

Pair = tuple[torch.Tensor, torch.Tensor]


class RowCaches(Cache):
    """The caches of several rows. `counts`: how many tokens each row adds.

    `is_latent`: the model makes keys and values out of what it caches, after it has asked for it; it is then given the
    rows' caches one after another. Else it is given back its own states, and attention takes the rows' from here.
    """

    def __init__(self, caches: Sequence[HopCache], counts: Sequence[int], is_latent: bool) -> None:
        super().__init__(layers=[])
        self.counts, self.starts = list(counts), [cache.num_tokens for cache in caches]
        self._caches, self._is_latent = caches, is_latent
        self._pairs: list[Pair] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Pair:
        rows = zip(self._caches, _split(key_states, self.counts), _split(value_states, self.counts), strict=True)
        self._pairs = [cache.update(keys, values, layer_idx) for cache, keys, values in rows]
        if not self._is_latent:
            return key_states, value_states
        keys, values = zip(*self._pairs, strict=True)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def pairs(self, keys: torch.Tensor, values: torch.Tensor) -> list[Pair]:
        """Each row's keys and values in the layer that has just updated."""
        if not self._is_latent:
            return self._pairs
        lengths = [start + count for start, count in zip(self.starts, self.counts, strict=True)]
        return list(zip(_split(keys, lengths), _split(values, lengths), strict=True))


_rows: ContextVar[RowCaches | None] = ContextVar("rows", default=None)


def forward(model: Callable[..., Any], rows: RowCaches, **arguments: Any) -> Any:
    """Calls a model whose attention is SDPA or EAGER of this module."""
    token = _rows.set(rows)
    try:
        return model(cache=rows, **arguments)
    finally:
        _rows.reset(token)


def _attention(inner: Callable[..., tuple[torch.Tensor, Any]]) -> Callable[..., tuple[torch.Tensor, Any]]:
    def attend(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        rows = _rows.get()
        if rows is None:
            return inner(module, query, key, value, attention_mask, **kwargs)
        masks = [None] * len(rows.counts) if attention_mask is None else attention_mask
        parts = zip(_split(query, rows.counts), rows.pairs(key, value), masks, strict=True)
        return torch.cat([inner(module, one, *pair, its, **kwargs)[0] for one, pair, its in parts], 1), None

    return attend


def _mask(inner: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        """A mask, or a list of the rows' masks: only attention looks at it."""
        rows = _rows.get()
        if rows is None:
            return inner(*args, **kwargs)
        made = []
        for start, count in zip(rows.starts, rows.counts, strict=True):
            sizes = {"q_length": count, "kv_length": start + count, "q_offset": start, "kv_offset": 0}
            made.append(inner(*args, **kwargs | sizes))
        return made

    return make


def _split(states: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, ...]:
    """states: [1, heads, tokens of all rows, width]"""
    return torch.split(states, counts, dim=2)


def _eager(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
    """The model's own: with what scaled_dot_product_attention lacks, sinks or soft caps."""
    attend = sys.modules[type(module).__module__].eager_attention_forward
    result: tuple[torch.Tensor, Any] = attend(module, *args, **kwargs)
    return result


AttentionInterface.register(SDPA, _attention(sdpa_attention_forward))
AttentionMaskInterface.register(SDPA, _mask(sdpa_mask))
AttentionInterface.register(EAGER, _attention(_eager))
AttentionMaskInterface.register(EAGER, _mask(eager_mask))
