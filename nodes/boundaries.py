"""What a head has sent to the hops of a session, kept so that a hop's replacement can be filled without the others.

Of each boundary between two hops, the activations of every token so far, byte for byte as they crossed. They are
cropped as caches are, and bounded over all sessions of the node: what doesn't fit isn't kept, and such a session is
filled from its token ids through the whole route. Pure.
"""

from __future__ import annotations

import threading
from collections.abc import Collection


class Budget:
    """Bytes that all sessions of a node may keep together. Safe from any thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._num_bytes = most_bytes, 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def take(self, num_bytes: int) -> bool:
        """False when there aren't so many left."""
        with self._lock:
            fits = self._num_bytes + num_bytes <= self._most_bytes
            self._num_bytes += num_bytes if fits else 0
            return fits

    def give_back(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes -= num_bytes


class Boundaries:
    """Of one session; a boundary is named by the layer after it. Used by one thread."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._kept: dict[int, bytearray] = {}
        self._token_bytes = 1  # of one token at any boundary

    def keep(self, layer: int, position: int, num_tokens: int, body: bytes) -> None:
        """Activations of the tokens from `position` on, instead of what was kept of these and later ones."""
        self._token_bytes = len(body) // num_tokens
        kept = self._kept.setdefault(layer, bytearray())
        start = position * self._token_bytes
        if start > len(kept):  # what is before is missing, so nothing could be filled from it
            return
        self._crop(kept, start)
        if self._budget.take(len(body)):
            kept += body
        else:
            self._crop(kept, 0)

    def has(self, layer: int, end: int) -> bool:
        """Whether the activations of all tokens before `end` are kept."""
        return len(self._kept.get(layer, b"")) >= end * self._token_bytes

    def get(self, layer: int, start: int, end: int) -> bytes:
        return bytes(self._kept[layer][start * self._token_bytes : end * self._token_bytes])

    def only(self, layers: Collection[int]) -> None:
        """The others are no boundaries any more."""
        for layer in [layer for layer in self._kept if layer not in layers]:
            self._crop(self._kept.pop(layer), 0)

    def _crop(self, kept: bytearray, num_bytes: int) -> None:
        self._budget.give_back(len(kept) - num_bytes)
        del kept[num_bytes:]
