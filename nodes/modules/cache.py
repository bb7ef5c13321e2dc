"""The keys and values that one hop of a session has computed, in room that is set aside once.

transformers' own dynamic layer concatenates, which copies the whole cache at every token. Here a token is written into
a buffer that is there; what attention sees is a view of its beginning, and the numbers are the same bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

_LEAST_ROOM = 128  # tokens


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: [batch, heads, tokens, width], the first `length` tokens of a larger buffer.

    Sliding-window layers use this, too: their mask does the window, and a cache that keeps all can be cropped.
    """

    def __init__(self, room_tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length = 0
        self._room_tokens = max(room_tokens, _LEAST_ROOM)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        start, end = self.length, self.length + key_states.shape[-2]
        if end > self._room_tokens:
            self._room_tokens = max(2 * self._room_tokens, end)
        self.keys = _with_room(self.keys, key_states, start, self._room_tokens)
        self.values = _with_room(self.values, value_states, start, self._room_tokens)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length, self.is_initialized = end, True
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        self.length -= abs(tokens_to_remove)


class HopCache(Cache):
    """The cache of a hop's layers [start_layer, end_layer), addressed by the model's own layer numbers.

    The hop's first layer is its layer 0: the model asks layer 0 how long the cache is, for positions and mask. With
    transformers' cache a hop that starts inside its shard sees an empty layer 0 and is wrong without an error.
    """

    def __init__(self, start_layer: int, end_layer: int, room_tokens: int = 0) -> None:
        self._rooms = [RoomyLayer(room_tokens) for _ in range(start_layer, end_layer)]
        super().__init__(layers=[*self._rooms])
        self.start_layer, self.end_layer = start_layer, end_layer

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._rooms[layer_idx - self.start_layer].update(key_states, value_states)

    @property
    def num_tokens(self) -> int:
        return self._rooms[0].length

    def crop_to(self, num_tokens: int) -> None:
        for room in self._rooms:
            room.length = min(room.length, num_tokens)


def _with_room(buffer: torch.Tensor | None, states: torch.Tensor, length: int, room_tokens: int) -> torch.Tensor:
    """The buffer, or one with more room that begins with the same tokens.

    Uninitialised, so that memory is used only where tokens have been written.
    """
    if buffer is not None and buffer.shape[-2] >= room_tokens:
        return buffer
    batch, heads, _, width = states.shape
    larger = states.new_empty((batch, heads, room_tokens, width))
    if buffer is not None:
        larger[:, :, :length] = buffer[:, :, :length]
    return larger
