"""Which layers a machine should hold, and why: those that raise the weakest part of its mesh most. Pure.

What counts, in this order: that every layer is held; the tokens a second of the weakest layer, up to what is asked for;
how strained the others are; that no layer hangs on one machine; how fast a chat is that is alone. Where more is there
than is asked for, the last two come first.

`planning.py` places whole meshes so, `proposals.py` says which machines should move, `forecasts.py` what a mesh does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tracker.forecasts import WEAK, expected_ms, in_words, ranges
from tracker.meshes import Machine, Mesh, NoRoom
from tracker.shares import NOTHING, Share, shares
from tracker.words import counted

__all__ = ["Choice", "Machine", "Mesh", "NoRoom", "choose_shard"]

HEADROOM = 3.0  # what a mesh should be able to do, over what is asked of it on average
FIGURES = 6  # that count when two shards are compared
MOST_ALIKE = 8  # shards that are as good by all else, of which the fastest for one chat is looked for


@dataclass(frozen=True, slots=True)
class Choice:
    start_layer: int
    end_layer: int
    reason: str  # in words, for whoever runs the site
    before: float  # tokens a second of the weakest layer without it, one step at a time
    after: float

    @property
    def layers(self) -> tuple[int, int]:
        return self.start_layer, self.end_layer


def choose_shard(
    mesh: Mesh, machine: Machine, within: tuple[int, int] | None = None, most: int | None = None
) -> Choice:
    """For a machine that joins; where it is in the mesh already, as if it weren't. `within`: of these layers some.
    `most`: looked at are about so many shards. Raises NoRoom."""
    others = mesh.without(machine.key)
    found = list(shares(others, machine, within, most))
    if not found:
        raise NoRoom(_no_room(machine, mesh.num_layers))
    best = _best(others, machine, found)
    after = best.bottleneck if best.bottleneck > 2 * NOTHING else 0.0
    reason = _reason(others, machine, best)
    return Choice(best.start_layer, best.end_layer, reason, others.bottleneck(), after)


def with_machine(mesh: Mesh, machine: Machine, start_layer: int, end_layer: int) -> Mesh:
    """The mesh once this machine, which may be new, holds these layers."""
    machines = (*mesh.without(machine.key).machines, machine.at(start_layer, end_layer))
    return replace(mesh, machines=machines)


def wanted_of(mesh: Mesh) -> float:
    """Tokens a second that the mesh should be able to do, one step at a time."""
    return float("inf") if mesh.demand is None else HEADROOM * mesh.demand


def _best(others: Mesh, machine: Machine, found: Sequence[Share]) -> Share:
    wanted = wanted_of(others)
    served, found = _least(found, lambda share: -min(share.bottleneck, wanted))
    is_enough = -served >= _rounded(wanted)
    hangs = _Fragile.of(others)
    _, found = _least(found, hangs.after if is_enough else lambda share: share.strain)
    bounds = {0, others.num_layers, *(bound for holder in others.holders() for bound in holder.shard())}
    alike = sorted(found, key=lambda share: (_num_apart(share, bounds), -share.num_layers, share.start_layer))
    if len(alike) == 1 or -served <= 2 * NOTHING:
        return alike[0]
    meshes = {share: with_machine(others, machine, share.start_layer, share.end_layer) for share in alike[:MOST_ALIKE]}
    return min(meshes, key=lambda share: _rounded(expected_ms(meshes[share])))


def _least(found: Sequence[Share], cost: Callable[[Share], float]) -> tuple[float, list[Share]]:
    """The least cost, and those that have it."""
    costs = [_rounded(cost(share)) for share in found]
    least = min(costs)
    return least, [share for share, one in zip(found, costs, strict=True) if one == least]


def _rounded(number: float) -> float:
    """So that what differs by the order of a sum is equal."""
    return float(f"{number:.{FIGURES}g}")


def _num_apart(share: Share, bounds: Collection[int]) -> int:
    """Ends of the shard where no other begins or ends: few routes could use all of it."""
    return (share.start_layer not in bounds) + (share.end_layer not in bounds)


@dataclass(frozen=True, slots=True)
class _Fragile:
    """How many layers hang on one machine, as sums from the first on."""

    held_once: list[int]
    held_never: list[int]

    @classmethod
    def of(cls, mesh: Mesh) -> _Fragile:
        numbers = mesh.num_holders
        once, never = ([0, *accumulate(number == wanted for number in numbers)] for wanted in (1, 0))
        return cls(once, never)

    def after(self, share: Share) -> int:
        start, end = share.start_layer, share.end_layer
        within = self.held_once[end] - self.held_once[start]
        return self.held_once[-1] - within + self.held_never[end] - self.held_never[start]


def _reason(others: Mesh, machine: Machine, best: Share) -> str:
    taken = range(best.start_layer, best.end_layer)
    missing = others.missing()
    closed = ranges([layer for layer in missing if layer in taken])
    left = ranges([layer for layer in missing if layer not in taken])
    if closed and left:
        most = f"its memory holds {counted(best.num_layers, 'layer')}; {in_words(left)} still have nobody"
        return f"Nobody held {in_words(closed)}: {most}."
    if closed:
        return f"Nobody held {in_words(closed)}: with them every layer is held."
    before, after = others.bottleneck(), best.bottleneck
    weak = ranges([layer for layer, capacity in enumerate(others.capacities) if capacity <= before * WEAK])
    if others.demand is not None and before >= wanted_of(others):
        enough = f"There is enough for the {others.demand:.1f} tokens/s that are asked for"
        return f"{enough}: so the fewest layers hang on one machine, and a chat alone is fast."
    if _rounded(after) > _rounded(before):
        return f"The weakest were {in_words(weak)}: from {before:.1f} to {after:.1f} tokens/s, one step at a time."
    return f"No single machine lifts all of the weakest, {in_words(weak)}: so these are relieved most."


def _no_room(machine: Machine, num_layers: int) -> str:
    needed = min(machine.needs_bytes(start, start + 1, num_layers) for start in range(num_layers))
    have = f"{machine.budget_bytes / 1e6:,.0f} MB are given to the node"
    return f"one layer takes {needed / 1e6:,.0f} MB with its caches, and {have}: give it more, or --weights int4"
