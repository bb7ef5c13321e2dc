"""What a mesh can be expected to do: tokens a second for one chat and for many, and where it is weakest. Pure.

Reckoned from measured times alone: of a layer on each machine, of each way to the relay. What the figures beside them
were measured with stands in docs/benchmarks.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tracker.meshes import Machine, Mesh
from tracker.routing import AS_FAST
from tracker.words import layers_in_words

HOP_MS = 3.0  # of each hop after the head beside its way: two programs' threads, sockets, the relay (bench.hops)
HEAD_MS = 2.0  # of each token beside computing: its text, its event, the site (bench.engine)
BATCH_GAIN = 5.0  # eight chats on a machine together over one at a time (bench.engine, batch8_over_own_one)
WEAK = 1.05  # layers within so much of the weakest are as weak

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    tokens_per_s_one: float  # of one chat that is alone; 0 where the mesh isn't whole
    tokens_per_s_all: float  # of all chats together, with several at each machine
    num_hops: int
    ms_computing: float  # of a token of that one chat; the rest is hops and the head
    ms_between: float
    weakest: Ranges  # half-open ranges of layers
    weakest_tokens_per_s: float  # one step at a time
    missing: Ranges  # that no machine holds
    fragile: Ranges  # that one machine alone holds

    @property
    def is_whole(self) -> bool:
        return not self.missing


def predict(mesh: Mesh) -> Forecast:
    capacities, holders = mesh.capacities, mesh.num_holders
    missing = ranges([layer for layer, number in enumerate(holders) if not number])
    weakest = min(capacities, default=0.0)
    computing, between, num_hops = (0.0, 0.0, 0) if missing else _token(mesh)
    return Forecast(
        tokens_per_s_one=0.0 if missing else 1000 / (computing + between),
        tokens_per_s_all=0.0 if missing else weakest * BATCH_GAIN,
        num_hops=num_hops,
        ms_computing=computing,
        ms_between=between,
        weakest=ranges([layer for layer, capacity in enumerate(capacities) if capacity <= weakest * WEAK]),
        weakest_tokens_per_s=weakest,
        missing=missing,
        fragile=ranges([layer for layer, number in enumerate(holders) if number == 1]),
    )


def expected_ms(mesh: Mesh) -> float:
    """Of a token of a chat that is alone on a mesh that is whole."""
    computing, between, _ = _token(mesh)
    return computing + between


def _token(mesh: Mesh) -> tuple[float, float, int]:
    """(ms of computing, ms of hops and the head, hops), as an average of the routes that may be taken: those of the
    fewest hops, by machines that are about as fast as the fastest (tracker/routing.py)."""
    by_shard = defaultdict[tuple[int, int], list[Machine]](list)
    for machine in mesh.holders():
        by_shard[machine.shard()].append(machine)
    groups = [_Group.of(shard, machines) for shard, machines in by_shard.items()]
    ways = {mesh.num_layers: (0, 0.0, 0.0)}  # from each layer on: hops, ms of computing, ms of their ways
    for layer in reversed(range(mesh.num_layers)):
        ways[layer] = _onward(mesh, [group for group in groups if group.start <= layer < group.end], ways, layer)
    num_hops, computing, way = ways[0]
    heads = [group for group in groups if group.start == 0 and ways[group.end][0] == num_hops - 1]
    head_rtt = sum(group.number * group.rtt_ms for group in heads) / sum(group.number for group in heads)
    others = num_hops - 1  # the head asks each in turn, so that its own way to the relay is in each hop
    return computing, HEAD_MS + others * HOP_MS + (way - head_rtt) + others * head_rtt, num_hops


@dataclass(frozen=True, slots=True)
class _Group:
    """Machines with the same shard that are about as fast: a route takes any of them."""

    start: int
    end: int
    number: int
    ms_per_layer: float
    rtt_ms: float

    @classmethod
    def of(cls, shard: tuple[int, int], machines: Sequence[Machine]) -> _Group:
        fastest = min(machine.ms_per_layer for machine in machines)
        taken = [machine for machine in machines if machine.ms_per_layer <= AS_FAST * fastest]
        pace = sum(machine.ms_per_layer for machine in taken) / len(taken)
        return cls(*shard, len(taken), pace, sum(machine.rtt_ms for machine in taken) / len(taken))

    def work_ms(self, layer: int, mesh: Mesh) -> float:
        tail = mesh.tail_layers if self.end == mesh.num_layers else 0.0
        return self.ms_per_layer * (self.end - layer + tail)


def _onward(
    mesh: Mesh, groups: Sequence[_Group], ways: dict[int, tuple[int, float, float]], layer: int
) -> tuple[int, float, float]:
    fewest = min(ways[group.end][0] for group in groups)
    shortest = [group for group in groups if ways[group.end][0] == fewest]
    fastest = min(group.work_ms(layer, mesh) for group in shortest)
    taken = [group for group in shortest if group.work_ms(layer, mesh) <= AS_FAST * fastest]
    number = sum(group.number for group in taken)
    computing = way = 0.0
    for group in taken:
        computing += group.number * (group.work_ms(layer, mesh) + ways[group.end][1]) / number
        way += group.number * (group.rtt_ms + ways[group.end][2]) / number
    return fewest + 1, computing, way


def ranges(layers: Sequence[int]) -> Ranges:
    """Half-open ranges of layers that are given in order."""
    runs = groupby(enumerate(layers), lambda pair: pair[1] - pair[0])
    found = [[layer for _, layer in run] for _, run in runs]
    return tuple((run[0], run[-1] + 1) for run in found)


def in_words(found: Ranges, most: int = 3) -> str:
    """ "layers 0–5 and layer 9"; of many ranges the first."""
    named = [layers_in_words(*layers) for layers in found[:most]]
    if len(found) > most:
        return f"{', '.join(named)} and more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
