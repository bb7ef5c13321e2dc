"""Rotary position embeddings as complex numbers: turning a pair of channels is one multiplication.

The two channels that are turned together lie side by side, x0 y0 x1 y1 …, where models on disk have x0 x1 … y0 y1 ….
Whoever loads query and key projections puts their rows in this order; attention only sums over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

# Frequencies that are the same at every length within the context. "dynamic" is: it scales only what lies beyond
# max_position_embeddings, and no session gets there. "longrope" isn't: it changes in the middle of a sequence.
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
_LEAST_POSITIONS = 1024


class Rope:
    """The turns of each position, computed once and as far as they are needed."""

    def __init__(self, config: Any, head_dim: int, dtype: torch.dtype) -> None:
        self._frequencies, self._scale = _frequencies(config, head_dim)
        self._dtype = dtype
        self._turns = torch.empty(0, len(self._frequencies), dtype=torch.complex64)

    def turns(self, start: int, end: int) -> torch.Tensor:
        """[positions, channels / 2] complex, of positions start to end."""
        if end > len(self._turns):
            self._turns = self._compute(max(end, 2 * len(self._turns), _LEAST_POSITIONS))
        return self._turns[start:end]

    def _compute(self, num_positions: int) -> torch.Tensor:
        angles = torch.arange(num_positions).float()[:, None] * self._frequencies
        # Rounded as transformers rounds them, so that bfloat16 models see the angles they see elsewhere.
        cos, sin = ((wave * self._scale).to(self._dtype).float() for wave in (angles.cos(), angles.sin()))
        return torch.complex(cos, sin)


def turn(channels: torch.Tensor, turns: torch.Tensor) -> None:
    """In place. channels: float32 [tokens, heads, channels], pairs side by side; turns: [tokens, 1, channels / 2]"""
    channels.view(torch.complex64).mul_(turns)


def paired_rows(num_heads: int, head_dim: int, num_channels: int) -> Iterator[tuple[slice, int]]:
    """Where the rows of a query or key projection go: (rows in memory, first of as many rows on disk)."""
    half = num_channels // 2
    for start in range(0, num_heads * head_dim, head_dim):
        yield slice(start, start + num_channels, 2), start
        yield slice(start + 1, start + num_channels, 2), start + half
        yield slice(start + num_channels, start + head_dim), start + num_channels


def _frequencies(config: Any, head_dim: int) -> tuple[torch.Tensor, float]:
    """(frequencies, factor on the turned channels), transformers' own where the config scales them."""
    rope = config.rope_parameters
    if (kind := rope.get("rope_type", "default")) != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return frequencies.float(), float(scale)
    num_channels = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    exponents = torch.arange(0, num_channels, 2, dtype=torch.float32) / num_channels
    return 1.0 / (rope["rope_theta"] ** exponents), 1.0
