"""Keys and values of one session in the lean executor: room set aside once, written in place, read as views."""

from __future__ import annotations

import torch

_LEAST_ROOM = 128  # tokens


class LeanCache:
    """One buffer for all layers of a hop: [layers, keys' heads then values' heads, room, head_dim].

    Uninitialised, so that memory is used only where tokens have been written.
    """

    def __init__(
        self, start_layer: int, end_layer: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, room_tokens: int
    ) -> None:
        self.start_layer, self.end_layer, self.num_tokens = start_layer, end_layer, 0
        self.dtype, self._num_kv_heads = dtype, num_kv_heads
        room = max(room_tokens, _LEAST_ROOM)
        self._buffer = torch.empty(end_layer - start_layer, 2 * num_kv_heads, room, head_dim, dtype=dtype)

    def crop_to(self, num_tokens: int) -> None:
        self.num_tokens = min(self.num_tokens, num_tokens)

    def grow_to(self, num_tokens: int) -> None:
        """Makes room; what is there stays."""
        layers, heads, room, head_dim = self._buffer.shape
        if num_tokens <= room:
            return
        larger = self._buffer.new_empty(layers, heads, max(2 * room, num_tokens), head_dim)
        larger[:, :, : self.num_tokens] = self._buffer[:, :, : self.num_tokens]
        self._buffer = larger

    def places(self, start: int, end: int) -> tuple[torch.Tensor, ...]:
        """For each layer where the keys and values of positions start to end go: [tokens, 2 * kv_heads, head_dim]"""
        return self._buffer[:, :, start:end].transpose(1, 2).unbind(0)

    def keys(self, start: int, end: int) -> tuple[torch.Tensor, ...]:
        """For each layer [1, kv_heads, tokens, head_dim]"""
        return self._buffer[:, None, : self._num_kv_heads, start:end].unbind(0)

    def values(self, start: int, end: int) -> tuple[torch.Tensor, ...]:
        return self._buffer[:, None, self._num_kv_heads :, start:end].unbind(0)
