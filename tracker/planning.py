"""Where all machines of a mesh would best be, were they placed afresh: what could be, and the what-if page. Pure.

Several beginnings, each made better one machine at a time until nothing more is gained; the best of them is taken.
Machines one after another, each where it helps most, find what many of them do well; a chain in which each has as many
layers as its speed allows finds what few of them do well.

The work is bounded: so many shards are looked at in all, about, whatever the size; and whoever asks can end it sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tracker.meshes import Machine, Mesh, NoRoom
from tracker.placement import Choice, choose_shard, wanted_of, with_machine
from tracker.shares import NOTHING

MANY, VERY_MANY = 200, 600  # machines times layers, from which on less is tried: a page waits for it
MOST_LOOKS = 150_000  # at shards, of all machines together; each takes 6 µs or so
LEAST_LOOKS = 400  # for one machine

ORDERS: tuple[Callable[[Machine], tuple[float, float]], ...] = (
    lambda machine: (-machine.budget_bytes, machine.ms_per_layer),
    lambda machine: (machine.budget_bytes, machine.ms_per_layer),
    lambda machine: (machine.ms_per_layer, -machine.budget_bytes),
    lambda machine: (-machine.ms_per_layer, machine.budget_bytes),
)


class CutShort(Exception):
    """Whoever asked wants to wait no longer."""


@dataclass(frozen=True, slots=True)
class _Effort:
    most_looks: int  # at shards, for one machine
    may_go_on: Callable[[], bool]

    def choose(self, mesh: Mesh, machine: Machine) -> Choice:
        if not self.may_go_on():
            raise CutShort
        return choose_shard(mesh, machine, most=self.most_looks)


def plan(mesh: Mesh, may_go_on: Callable[[], bool] = lambda: True) -> Mesh:
    """The same machines, placed. Who is fixed stays where it is; who has no room for a layer holds none. Raises
    CutShort once `may_go_on`, which is asked before each step, says no."""
    size = len(mesh.machines) * mesh.num_layers
    orders, most_rounds = (ORDERS, 6) if size <= MANY else (ORDERS[:1], 2) if size <= VERY_MANY else (ORDERS[:1], 0)
    num_choices = max(1, len(mesh.machines) * 2 * len(orders))
    effort = _Effort(max(LEAST_LOOKS, MOST_LOOKS // num_choices), may_go_on)
    beginnings = _beginnings(mesh, orders, effort)
    return max((_settled(begun, most_rounds, effort) for begun in beginnings), key=worth)


def worth(mesh: Mesh) -> tuple[float, int, float]:
    """More is better: the tokens a second of the weakest layer, up to what is wanted; where that is reached, how few
    layers hang on one machine; then how little all of them are strained."""
    capacities, wanted = mesh.capacities, wanted_of(mesh)
    strain = sum(1 / max(NOTHING, capacity) for capacity in capacities)
    served = min(min(capacities), wanted)
    num_fragile = mesh.num_holders.count(1) if served >= wanted else 0
    return round(served, 6), -num_fragile, -float(f"{strain:.9g}")


def _beginnings(
    mesh: Mesh, orders: Sequence[Callable[[Machine], tuple[float, float]]], effort: _Effort
) -> Iterator[Mesh]:
    fixed = replace(mesh, machines=tuple(machine for machine in mesh.machines if machine.is_fixed))
    free = [machine.at(None, None) for machine in mesh.machines if not machine.is_fixed]
    for order in orders:
        machines = sorted(free, key=order)
        yield _one_by_one(fixed, machines, effort)
        yield _one_by_one(_chained(fixed, machines), machines, effort)


def _one_by_one(mesh: Mesh, machines: Sequence[Machine], effort: _Effort) -> Mesh:
    """Those that aren't placed yet, in this order."""
    placed = {machine.key for machine in mesh.machines}
    for machine in machines:
        if machine.key not in placed:
            mesh = _added(mesh, machine, effort)
    return mesh


def _added(mesh: Mesh, machine: Machine, effort: _Effort) -> Mesh:
    try:
        choice = effort.choose(mesh, machine)
    except NoRoom:
        return replace(mesh, machines=(*mesh.machines, machine))
    return with_machine(mesh, machine, *choice.layers)


def _settled(mesh: Mesh, most_rounds: int, effort: _Effort) -> Mesh:
    """Until no machine alone helps more elsewhere."""
    for _ in range(most_rounds):
        before = worth(mesh)
        for machine in mesh.machines:
            if not machine.is_fixed and machine.holds():
                moved = mesh.moved(machine.key, *effort.choose(mesh, machine).layers)
                mesh = max(mesh, moved, key=worth)
        if worth(mesh) == before:
            break
    return mesh


def _chained(mesh: Mesh, machines: Sequence[Machine]) -> Mesh:
    """With a chain of machines in this order that hold each layer once, as fast as its slowest can be; without one
    where they don't reach."""
    last = mesh.num_layers
    paces = sorted({mesh.rate(machine, 0, length) for machine in machines for length in range(1, last)}, reverse=True)
    low, high, best = 0, len(paces) - 1, list[tuple[Machine, int, int]]()
    while low <= high:
        middle = (low + high) // 2
        chain = _chain(mesh, machines, paces[middle])
        best, low, high = (chain, low, middle - 1) if chain else (best, middle + 1, high)
    for machine, start, end in best:
        mesh = with_machine(mesh, machine, start, end)
    return mesh


def _chain(mesh: Mesh, machines: Sequence[Machine], rate: float) -> list[tuple[Machine, int, int]]:
    """Each takes what it can at this rate; nothing where layers are left over."""
    chain, at = list[tuple[Machine, int, int]](), 0
    for machine in machines:
        end = at
        while end < mesh.num_layers and _goes(mesh, machine, at, end + 1, rate):
            end += 1
        if end > at:
            chain.append((machine, at, end))
            at = end
    return chain if at == mesh.num_layers else []


def _goes(mesh: Mesh, machine: Machine, start: int, end: int, rate: float) -> bool:
    return machine.fits(start, end, mesh.num_layers) and mesh.rate(machine, start, end) >= rate * (1 - 1e-9)
