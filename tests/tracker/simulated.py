"""Meshes that come and go without a site: machines drawn, joined, moved and lost; and the best placement of few."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tracker.meshes import Machine, Mesh, NoRoom
from tracker.placement import choose_shard, with_machine
from tracker.proposals import Proposal, propose
from tracker.routing import Candidate, find_route, taken

LAYER_BYTES = 100
PACES = (0.5, 1.0, 1.0, 2.0, 4.0)  # ms of a layer
MOST_STEPS = 40  # of moves, after which a mesh that goes on moving isn't settling


def machine(key: str, layers: int, ms_per_layer: float = 1.0, rtt_ms: float = 20.0) -> Machine:
    """With memory for so many layers."""
    return Machine(key, layers * LAYER_BYTES, LAYER_BYTES, 0, 0, ms_per_layer, rtt_ms)


def drawn(number: int, num_layers: int, chance: random.Random, most_layers: int | None = None) -> list[Machine]:
    """Machines of mixed speeds that can hold the model together."""
    most = most_layers or num_layers
    while True:
        layers = [chance.randint(1, most) for _ in range(number)]
        if sum(layers) >= num_layers:
            return [
                machine(f"m{at}", count, chance.choice(PACES), chance.uniform(1, 80)) for at, count in enumerate(layers)
            ]


@dataclass
class Simulated:
    """A mesh whose site follows every proposal at once, the first of each."""

    mesh: Mesh
    num_loads: int = 0  # moves that load layers
    num_moves: int = 0  # all of them
    bottlenecks: list[float] = field(default_factory=list)  # after each change

    def join(self, newcomer: Machine) -> None:
        try:
            choice = choose_shard(self.mesh, newcomer)
        except NoRoom:
            self.mesh = replace(self.mesh, machines=(*self.mesh.machines, newcomer))
            return
        self.mesh = with_machine(self.mesh, newcomer, *choice.layers)

    def leave(self, key: str) -> None:
        self.mesh = self.mesh.without(key)

    def settle(self) -> int:
        """How many moves it took."""
        for number in range(MOST_STEPS):
            proposals = propose(self.mesh)
            if not proposals:
                return number
            self._follow(proposals[0])
        raise AssertionError(f"after {MOST_STEPS} moves there are still proposals: {propose(self.mesh)}")

    def _follow(self, proposal: Proposal) -> None:
        is_whole, others = self.mesh.is_whole(), self.mesh.without(proposal.key)
        after = self.mesh.moved(proposal.key, proposal.start_layer, proposal.end_layer)
        if is_whole:
            assert after.is_whole()
            assert others.is_whole() or not proposal.loads, f"{proposal} leaves layers alone while it loads"
        self.mesh = after
        self.num_moves += 1
        self.num_loads += proposal.loads


def joined(machines: Sequence[Machine], num_layers: int, demand: float | None = None) -> Simulated:
    """One after another, moves in between."""
    simulated = Simulated(Mesh(num_layers, (), demand))
    for newcomer in machines:
        simulated.join(newcomer)
        simulated.settle()
    return simulated


def optimum(machines: Sequence[Machine], num_layers: int) -> float:
    """The most tokens a second of the weakest layer that any placement gives. It tries all: for few machines."""
    options = [_options(machine, num_layers) for machine in machines]
    left = [sum(1000 / machine.ms_per_layer for machine in machines[at:]) for at in range(len(machines) + 1)]
    best = 0.0

    def place(at: int, capacities: list[float]) -> None:
        nonlocal best
        if at == len(options):
            best = max(best, min(capacities))
        elif (sum(capacities) + left[at]) / num_layers > best:
            for option in options[at]:
                place(at + 1, [one + other for one, other in zip(capacities, option, strict=True)])

    place(0, [0.0] * num_layers)
    return best


def routed(mesh: Mesh, num_chats: int, chance: random.Random) -> float:
    """Tokens a second, one step at a time, of so many chats that begin one after another by the site's own routing."""
    by_key = {machine.key: machine for machine in mesh.holders()}
    shards = [Candidate(one.key, *one.shard(), ms_per_layer=one.ms_per_layer) for one in by_key.values()]
    busy_ms = dict.fromkeys(by_key, 0.0)
    for _ in range(num_chats):
        route = find_route(shards, mesh.num_layers, chance)
        shards = taken(shards, route, 0)
        for hop in route:
            busy_ms[hop.peer_id] += mesh.work_ms(by_key[hop.peer_id], hop.start_layer, hop.end_layer)
    return num_chats * 1000 / max(busy_ms.values())


def _options(machine: Machine, num_layers: int) -> list[list[float]]:
    """What each shard gives each layer."""
    shards = [(start, end) for start in range(num_layers) for end in range(start + 1, num_layers + 1)]
    return [
        [1000 / (machine.ms_per_layer * (end - start)) if start <= layer < end else 0.0 for layer in range(num_layers)]
        for start, end in shards
        if machine.fits(start, end, num_layers)
    ]
