"""The machines of a model as placement reckons with them: what each can hold, which layers, how fast each layer is.

Pure. A machine works `1000 / (ms_per_layer * its layers)` tokens a second, one at a time; a layer's capacity is what
those who hold it work together, and the mesh's is that of its weakest layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate


class NoRoom(Exception):
    """The machine's memory holds no layer; the text says what one takes and what there is."""


@dataclass(frozen=True, slots=True)
class Machine:
    key: str
    budget_bytes: int  # for weights and caches together
    layer_bytes: int  # of one layer as this machine holds it, with its share of the caches
    head_bytes: int  # that the first layer's machine needs beside its layers
    tail_bytes: int  # that the last layer's machine needs beside its layers
    ms_per_layer: float  # of one token through one layer
    rtt_ms: float  # to the relay and back
    start_layer: int | None = None  # what it holds now; None: nothing yet
    end_layer: int | None = None
    is_fixed: bool = False  # its owner chose its layers: it counts, and isn't moved
    loaded_start: int | None = None  # what it has in memory, where that is more than it is used for
    loaded_end: int | None = None

    def holds(self) -> bool:
        return self.start_layer is not None

    def at(self, start_layer: int | None, end_layer: int | None) -> Machine:
        """With these layers; it keeps what it has in memory where they are part of that, else it loads them."""
        if start_layer is None or end_layer is None or not self.has_loaded(start_layer, end_layer):
            return replace(self, start_layer=start_layer, end_layer=end_layer, loaded_start=None, loaded_end=None)
        loaded_start, loaded_end = self.loaded()
        return replace(
            self, start_layer=start_layer, end_layer=end_layer, loaded_start=loaded_start, loaded_end=loaded_end
        )

    def loaded(self) -> tuple[int, int]:
        """The layers in its memory; (0, 0) for none."""
        if self.loaded_start is not None and self.loaded_end is not None:
            return self.loaded_start, self.loaded_end
        return self.shard() if self.holds() else (0, 0)

    def has_loaded(self, start_layer: int, end_layer: int) -> bool:
        start, end = self.loaded()
        return start <= start_layer < end_layer <= end

    def shard(self) -> tuple[int, int]:
        assert self.start_layer is not None
        assert self.end_layer is not None
        return self.start_layer, self.end_layer

    def needs_bytes(self, start_layer: int, end_layer: int, num_layers: int) -> int:
        ends = self.head_bytes * (start_layer == 0) + self.tail_bytes * (end_layer == num_layers)
        return (end_layer - start_layer) * self.layer_bytes + ends

    def fits(self, start_layer: int, end_layer: int, num_layers: int) -> bool:
        return self.needs_bytes(start_layer, end_layer, num_layers) <= self.budget_bytes

    def last_ends(self, start_layer: int, num_layers: int) -> tuple[int, bool]:
        """(the furthest end before the last layer that it can hold from here, whether it can hold all to the end)"""
        room = self.budget_bytes - self.head_bytes * (start_layer == 0)
        most = max(0, room) // max(1, self.layer_bytes)
        return min(num_layers - 1, start_layer + most), self.fits(start_layer, num_layers, num_layers)


@dataclass(frozen=True)
class Mesh:
    num_layers: int
    machines: tuple[Machine, ...]
    demand: float | None = None  # tokens a second that are asked for; None: as much as there is
    tail_layers: float = 0.0  # what the output after the last layer takes to compute, in layers

    def machine(self, key: str) -> Machine:
        return next(machine for machine in self.machines if machine.key == key)

    def holders(self) -> Iterator[Machine]:
        return (machine for machine in self.machines if machine.holds())

    def without(self, key: str) -> Mesh:
        return replace(self, machines=tuple(machine for machine in self.machines if machine.key != key))

    def moved(self, key: str, start_layer: int | None, end_layer: int | None) -> Mesh:
        return replace(
            self,
            machines=tuple(
                machine.at(start_layer, end_layer) if machine.key == key else machine for machine in self.machines
            ),
        )

    def work_ms(self, machine: Machine, start_layer: int, end_layer: int) -> float:
        """Of one token through these layers of the machine."""
        tail = self.tail_layers if end_layer == self.num_layers else 0.0
        return machine.ms_per_layer * (end_layer - start_layer + tail)

    def rate(self, machine: Machine, start_layer: int, end_layer: int) -> float:
        """Tokens a second, one at a time."""
        return 1000 / max(1e-6, self.work_ms(machine, start_layer, end_layer))

    @cached_property
    def capacities(self) -> tuple[float, ...]:
        """Tokens a second of each layer."""
        return tuple(self._summed((self.rate(machine, *machine.shard()), machine) for machine in self.holders()))

    @cached_property
    def num_holders(self) -> tuple[int, ...]:
        """Of each layer."""
        return tuple(round(number) for number in self._summed((1.0, machine) for machine in self.holders()))

    def bottleneck(self) -> float:
        """Tokens a second of the weakest layer; 0 while one is held by nobody."""
        return min(self.capacities) if self.is_whole() else 0.0

    def missing(self) -> list[int]:
        return [layer for layer, number in enumerate(self.num_holders) if not number]

    def is_whole(self) -> bool:
        return not self.missing()

    def _summed(self, shares: Iterable[tuple[float, Machine]]) -> list[float]:
        steps = [0.0] * (self.num_layers + 1)
        for share, machine in shares:
            start, end = machine.shard()
            steps[start] += share
            steps[min(end, self.num_layers)] -= share
        return [max(0.0, number) for number in accumulate(steps[:-1])]
