"""How good placement is: simulated meshes against the best there is, moves per join and leave, what a choice takes.

Small meshes, of 3 or 4 machines of mixed memory and speed and 4 to 7 layers, join one after another and follow every
proposal; the tokens a second of their weakest layer are compared with the best of all placements, found by trying them.
Meshes of up to 1,000 machines lose and gain machines; it is counted how many others load other layers for it. At last
chats are sent through a large mesh by the site's own routing, to see whether it serves what is promised.

    python -m bench.placement [--quick] [--json]
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from bench.report import finish, median, options, table
from tests.tracker.simulated import Simulated, drawn, joined, machine, optimum, routed
from tracker.meshes import Mesh
from tracker.placement import choose_shard
from tracker.planning import plan

SEED = 7
CHOICES = 20  # that are timed
MOST_GONE = 15  # machines of a large mesh
HEADER = [
    "machines",
    "layers",
    "weakest layer over an even spread",
    "loads per join",
    "per leave",
    "routed over weakest",
]
QUICK, SIZES = [(3, 12), (10, 24), (30, 32), (300, 32)], [(3, 12), (10, 24), (30, 32), (100, 32), (300, 32), (1000, 32)]


@dataclass(frozen=True)
class Small:
    """One small mesh: what it does over the best there is."""

    joined: float
    planned: float
    loads_per_join: float


def small(seed: int) -> Small:
    chance = random.Random(seed)
    num_layers, number = chance.randint(4, 7), chance.randint(3, 4)
    machines = drawn(number, num_layers, chance)
    best, simulated = optimum(machines, num_layers), joined(machines, num_layers)
    planned = plan(Mesh(num_layers, tuple(machines))).bottleneck()
    return Small(simulated.mesh.bottleneck() / best, planned / best, simulated.num_loads / number)


@dataclass(frozen=True)
class Large:
    """A mesh of many machines, before and after a third of them have left and as many have come."""

    number: int
    num_layers: int
    over_bound: float  # of what all machines would do, were they spread evenly without limits of memory
    loads_per_join: float
    loads_per_leave: float
    routed: float  # what chats get by the site's routing, over what the weakest layer does

    def row(self) -> list[str]:
        figures = (self.over_bound, self.loads_per_join, self.loads_per_leave, self.routed)
        return [str(self.number), str(self.num_layers), *(f"{figure:.2f}" for figure in figures)]


def large(number: int, num_layers: int) -> Large:
    chance = random.Random(SEED)
    machines = drawn(number, num_layers, chance, max(2, num_layers // 2))
    simulated = Simulated(Mesh(num_layers, ()))
    for newcomer in machines:
        simulated.join(newcomer)
    simulated.settle()
    begun = simulated.num_loads
    gone = chance.sample(machines, max(1, number // 3))[:MOST_GONE]
    for leaving in gone:
        simulated.leave(leaving.key)
        simulated.settle()
    left = simulated.num_loads
    for newcomer in gone:
        simulated.join(newcomer)
        simulated.settle()
    bound = sum(1000 / one.ms_per_layer for one in machines) / num_layers
    return Large(
        number,
        num_layers,
        simulated.mesh.bottleneck() / bound,
        (simulated.num_loads - left) / len(gone),
        (left - begun) / len(gone),
        routed(simulated.mesh, 5 * number, chance) / simulated.mesh.bottleneck(),
    )


def choose_ms(num_layers: int, number: int) -> float:
    chance = random.Random(SEED)
    machines = []
    for at in range(number):
        length = chance.randint(1, num_layers // 2)
        start = chance.randint(0, num_layers - length)
        machines.append(machine(f"m{at}", length, chance.choice((0.5, 1.0, 2.0, 4.0))).at(start, start + length))
    mesh, times = Mesh(num_layers, tuple(machines)), list[float]()
    for _ in range(CHOICES):
        begun = time.perf_counter()
        choose_shard(mesh, machine("new", num_layers // 2))
        times.append((time.perf_counter() - begun) * 1000)
    return median(times)


def main() -> None:
    chosen = options(__doc__)
    smalls = [small(seed) for seed in range(30 if chosen.quick else 200)]
    larges = [large(*size) for size in (QUICK if chosen.quick else SIZES)]
    print(table(HEADER, [one.row() for one in larges]))
    finish(
        {
            "optimum_ratio_median": round(median([one.joined for one in smalls]), 3),
            "optimum_ratio_min": round(min(one.joined for one in smalls), 3),
            "optimum_ratio_mean": round(sum(one.joined for one in smalls) / len(smalls), 3),
            "plan_ratio_median": round(median([one.planned for one in smalls]), 3),
            "plan_ratio_min": round(min(one.planned for one in smalls), 3),
            "routed_over_weakest": round(median([one.routed for one in larges]), 3),
            "moves_per_join": round(sum(one.loads_per_join for one in larges) / len(larges), 3),
            "moves_per_leave": round(sum(one.loads_per_leave for one in larges) / len(larges), 3),
            "choose_ms_1000": round(choose_ms(80, 1000), 1),
        },
        chosen.json,
    )


if __name__ == "__main__":
    main()
