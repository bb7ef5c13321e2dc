"""What each shard that a machine could take would do for a mesh: the weakest layer after it, and all of them together.

Pure, and the one place in placement that must be quick: all shards of a machine are looked at in one pass over the
layers for each length, with running minima and sums, so that a mesh's size costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt

from tracker.meshes import Machine, Mesh

NOTHING = 1e-6  # tokens a second of a layer that nobody holds: so little that a gap outweighs everything else
MOST_SHARDS = 40_000  # that are looked at, about; of a model with very many layers not every length


@dataclass(frozen=True, slots=True)
class Share:
    """One shard, and the mesh with it."""

    start_layer: int
    end_layer: int
    bottleneck: float  # tokens a second of the weakest layer
    strain: float  # the time a token takes at each layer's capacity, of all layers: a gap outweighs all else

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.start_layer


def shares(
    mesh: Mesh, machine: Machine, within: tuple[int, int] | None = None, most: int | None = None
) -> Iterator[Share]:
    """Every shard that fits the machine, were it added to the mesh; where layers are given, those `within` them. At
    `most` so many, about, where that is said: then fewer lengths, and of the starts some and those beside another's
    shard, so that gaps are closed all the same."""
    last = mesh.num_layers
    first, final = within or (0, last)
    layers = _Layers([max(NOTHING, capacity) for capacity in mesh.capacities])
    ends = {start: machine.last_ends(start, last) for start in range(first, final)}
    longest = min(max((end - start for start, (end, _) in ends.items()), default=0), final - first)
    is_thinned = most is not None and longest * (final - first) > most
    bounds = {bound for holder in mesh.holders() for bound in holder.shard()} if is_thinned else set()
    for length in _few_lengths(longest, most) if most and is_thinned else _lengths(longest, last):
        rate = mesh.rate(machine, 0, length) if length < last else 0.0
        inner = layers.raised(rate)
        starts = range(first, min(final, last - 1) - length + 1)
        for start in _few_starts(starts, bounds, length, most) if most and is_thinned else starts:
            if start + length <= ends[start][0]:
                yield layers.share(start, start + length, rate, inner)
    tails = range(first, last) if final == last else range(0)
    for start in _few_starts(tails, bounds, 0, most // 16) if most and is_thinned else tails:
        if ends[start][1]:
            rate = mesh.rate(machine, start, last)
            yield layers.share(start, last, rate, layers.raised(rate, start))


def _lengths(most: int, num_layers: int) -> list[int]:
    """All up to the most; where that were too many shards, fewer and fewer of the long ones, and the longest."""
    lengths, length = [], 1
    while length <= most:
        lengths.append(length)
        length += 1 if most * num_layers <= MOST_SHARDS else max(1, length // 12)
    return lengths if not lengths or lengths[-1] == most else [*lengths, most]


def _few_lengths(longest: int, most: int) -> list[int]:
    """From the longest down, fewer and fewer of the short ones."""
    number = max(2, isqrt(most) // 3)
    return sorted({max(1, round(longest * part / number)) for part in range(1, number + 1)} | {1})


def _few_starts(starts: range, bounds: set[int], length: int, most: int) -> list[int]:
    """Some all over, and those of which the shard begins or ends where another does."""
    every = max(1, len(starts) // max(1, isqrt(most)))
    beside = {start for bound in bounds for start in (bound, bound - length) if start in starts}
    return sorted({*starts[::every], *starts[-1:], *beside})


class _Layers:
    """The capacities before, with what is needed to say at once what any shard does to them."""

    def __init__(self, capacities: list[float]) -> None:
        self._capacities = capacities
        self._until = [float("inf"), *accumulate(capacities, min)]
        self._from = [*reversed([float("inf"), *accumulate(reversed(capacities), min)])]
        self._strains = self.raised(0.0)
        self._lows = self._minima()

    def raised(self, rate: float, start: int = 0) -> list[float]:
        """Sums from the first layer on of each layer's strain, were all raised by so much, those before `start` 0."""
        return [0.0, *accumulate([0.0] * start + [1 / (capacity + rate) for capacity in self._capacities[start:]])]

    def share(self, start: int, end: int, rate: float, inner: list[float]) -> Share:
        low = min(self._until[start], self._from[end], self._low(start, end) + rate)
        before, strains = self._strains, inner[end] - inner[start]
        return Share(start, end, low, before[start] + strains + before[-1] - before[end])

    def _low(self, start: int, end: int) -> float:
        row = self._lows[(end - start).bit_length() - 1]
        return min(row[start], row[end - (1 << ((end - start).bit_length() - 1))])

    def _minima(self) -> list[list[float]]:
        """Row k: the least of the 2**k layers from each layer on."""
        rows, width = [self._capacities], 1
        while 2 * width <= len(self._capacities):
            row = rows[-1]
            rows.append([min(row[at], row[at + width]) for at in range(len(row) - width)])
            width *= 2
        return rows
