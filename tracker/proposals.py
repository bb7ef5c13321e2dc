"""Which machines of a mesh should hold other layers: only for a clear gain that pays for loading them. Pure.

A move takes its machine out for as long as it loads, so it is proposed only where every layer is held without it too;
while some layer is held by nobody, nothing can be lost. A machine that is to use others of the layers that it has in
memory needs no loading at all. Several steps may be needed before the weakest part is better off; none on the way may
make it worse. What is carried out raises the weakest part by MIN_GAIN at least, so it comes to an end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from tracker.forecasts import WEAK, in_words, ranges
from tracker.meshes import Machine, Mesh, NoRoom
from tracker.placement import choose_shard, wanted_of
from tracker.planning import plan, worth

MIN_GAIN = 1.2
MIN_SAVED = 0.25  # of the layers: so many hang on one machine no more, where there is enough for all who ask
MAX_GAIN = 100.0  # as which the end of a gap counts
MOST_STEPS = 4
MOST_APART = 8  # machines that a plan has elsewhere: beyond, it is another mesh and no way to it is looked for
MOST_LOOKED_AT = 16  # machines of those that can be moved: the ones that are missed least where they are
RELOAD_S = 120.0  # a machine is away for so long
PAYS_WITHIN_S = 3600.0
PAYS_TIMES = 2.0  # what is gained within that time, over what is lost by reloading
AS_GOOD = 0.85  # a plan of fewer steps is taken for so much of the gain


@dataclass(frozen=True, slots=True)
class Proposal:
    key: str
    start_layer: int
    end_layer: int
    gain: float  # tokens a second of the weakest layer after all steps, over those before
    reason: str
    loads: bool = True  # False: it has these layers in memory already, and uses others of them


@dataclass(frozen=True, slots=True)
class Step:
    machine: Machine  # as it is before
    start_layer: int
    end_layer: int

    @property
    def loads(self) -> bool:
        return not self.machine.has_loaded(self.start_layer, self.end_layer)

    def taken(self, mesh: Mesh) -> Mesh:
        return mesh.moved(self.machine.key, self.start_layer, self.end_layer)

    def is_clean(self, mesh: Mesh) -> bool:
        """No chat loses its way by it."""
        if not mesh.is_whole() or mesh.without(self.machine.key).is_whole():
            return True
        return not self.loads and self.taken(mesh).is_whole()


def propose(mesh: Mesh) -> list[Proposal]:
    """Moves in the order in which they are to be made, one after the other; none where nothing is clearly gained."""
    found = [steps for steps in (_one_by_one(mesh), _towards(mesh, _plan_of(mesh))) if steps]
    if not found:
        return []
    most = max(_gain(mesh, steps) for steps in found)
    good = [steps for steps in found if _gain(mesh, steps) >= most * AS_GOOD]
    chosen = min(good, key=lambda steps: (sum(step.loads for step in steps), len(steps)))
    return _in_words(mesh, chosen)


def _one_by_one(mesh: Mesh) -> list[Step]:
    """The move that helps most, and the next, until that is worth it."""
    now, steps = mesh, list[Step]()
    while len(steps) < MOST_STEPS:
        step = _best_step(now, {step.machine.key for step in steps})
        if step is None:
            return []
        now = step.taken(now)
        steps.append(step)
        if _is_worth(mesh, steps):
            return steps
    return []


def _best_step(mesh: Mesh, moved: set[str]) -> Step | None:
    best, most = None, worth(mesh)
    for step in _possible(mesh, moved):
        if (after := worth(step.taken(mesh))) > most:
            best, most = step, after
    return best


def _possible(mesh: Mesh, moved: set[str]) -> Iterator[Step]:
    capacities = mesh.capacities
    movable = [machine for machine in _movable(mesh) if machine.key not in moved]
    movable.sort(key=lambda machine: (-_left_without(mesh, capacities, machine), machine.ms_per_layer, machine.key))
    for machine in movable[:MOST_LOOKED_AT]:
        for within in (None, machine.loaded()):
            try:
                step = Step(machine, *choose_shard(mesh, machine, within).layers)
            except NoRoom:
                continue
            if step.is_clean(mesh):
                yield step


def _left_without(mesh: Mesh, capacities: Sequence[float], machine: Machine) -> float:
    """Tokens a second of the weakest of its layers, were it away."""
    start, end = machine.shard()
    return min(capacities[start:end]) - mesh.rate(machine, start, end)


def _plan_of(mesh: Mesh) -> Mesh:
    """Where all would best be; of many machines that isn't asked, since one at a time comes close."""
    return plan(mesh) if len(_movable(mesh)) <= MOST_LOOKED_AT else mesh


def _towards(mesh: Mesh, target: Mesh) -> list[Step]:
    """The fewest steps to it, or a part of the way, in an order in which no chat loses its way."""
    wanted = {machine.key: machine.shard() for machine in target.holders()}
    steps = [
        Step(machine, *wanted[machine.key])
        for machine in _movable(mesh)
        if machine.key in wanted and wanted[machine.key] != machine.shard()
    ]
    for number in range(1, MOST_STEPS + 1 if len(steps) <= MOST_APART else 1):
        for some in combinations(steps, number):
            if _is_worth(mesh, some):
                order = next((order for order in permutations(some) if _is_way(mesh, order)), None)
                if order:
                    return list(order)
    return []


def _is_way(mesh: Mesh, steps: Sequence[Step]) -> bool:
    least = mesh.bottleneck() * (1 - 1e-6)
    for step in steps:
        after = step.taken(mesh)
        if not step.is_clean(mesh) or after.bottleneck() < least:
            return False
        mesh = after
    return True


def _movable(mesh: Mesh) -> list[Machine]:
    return [machine for machine in mesh.holders() if not machine.is_fixed]


def _after(mesh: Mesh, steps: Sequence[Step]) -> Mesh:
    for step in steps:
        mesh = step.taken(mesh)
    return mesh


def _gain(before: Mesh, steps: Sequence[Step]) -> float:
    was, will = before.bottleneck(), _after(before, steps).bottleneck()
    return min(MAX_GAIN, will / was) if was else MAX_GAIN


def _is_worth(before: Mesh, steps: Sequence[Step]) -> bool:
    after = _after(before, steps)
    if not before.is_whole():
        return after.is_whole() or len(after.missing()) < len(before.missing())
    wanted = wanted_of(before)
    was, will = min(before.bottleneck(), wanted), min(after.bottleneck(), wanted)
    if was >= wanted:
        saved = before.num_holders.count(1) - after.num_holders.count(1)
        return will >= was and saved >= max(1, MIN_SAVED * before.num_layers)
    return will >= MIN_GAIN * was and (will - was) * PAYS_WITHIN_S > _lost(before, steps, was) * PAYS_TIMES


def _lost(before: Mesh, steps: Sequence[Step], served: float) -> float:
    """Tokens that aren't served while machines load."""
    away = [before.without(step.machine.key).bottleneck() for step in steps if step.loads]
    return sum(max(0.0, served - left) * RELOAD_S for left in away)


def _in_words(before: Mesh, steps: Sequence[Step]) -> list[Proposal]:
    gain, after = _gain(before, steps), _after(before, steps)
    why = _why(before, after)
    told = list[Proposal]()
    for number, step in enumerate(steps, 1):
        of_all = f" Step {number} of {len(steps)}." if len(steps) > 1 else ""
        how = "" if step.loads else " It has them in memory: nothing is loaded."
        reason = f"{why}{of_all}{how}"
        told.append(Proposal(step.machine.key, step.start_layer, step.end_layer, gain, reason, step.loads))
    return told


def _why(before: Mesh, after: Mesh) -> str:
    missing, left = ranges(before.missing()), ranges(after.missing())
    if missing:
        then = f"{in_words(left)} still have nobody then" if left else "every layer is held then"
        return f"Nobody holds {in_words(missing)}; {then}."
    was, will = before.bottleneck(), after.bottleneck()
    if was >= wanted_of(before):
        hang, left = (
            ranges([at for at, number in enumerate(mesh.num_holders) if number == 1]) for mesh in (before, after)
        )
        then = f"of these {in_words(left)} still do then" if left else "none do then"
        return f"Layers that hang on one machine: {in_words(hang)}; {then}."
    weak = ranges([layer for layer, capacity in enumerate(before.capacities) if capacity <= was * WEAK])
    return f"The weakest are {in_words(weak)}: from {was:.1f} to {will:.1f} tokens/s, one step at a time."
