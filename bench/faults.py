"""What befalls a mesh and when, drawn beforehand: the same seed gives the same faults."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PAUSE_S = (4.0, 9.0)  # from one fault's beginning to the next one's
LASTS_S = {
    "kill": (0.3, 2.0),  # SIGKILL; then the node is started again
    "stop": (1.0, 8.0),  # SIGSTOP, then SIGCONT
    "cut": (0.0, 1.5),  # its connections are reset, and new ones refused
    "delay": (2.0, 8.0),  # what it sends and gets comes late
    "hole": (2.0, 8.0),  # what it sends and gets is lost, and nobody hears that anybody has gone
    "relay": (0.0, 1.5),  # SIGKILL of the process that holds all nodes' sockets; then it is started again
}
DELAY_MS = (20.0, 200.0)  # each way
HELD_SHARE = 0.5  # of black holes after which connections stay dead until someone notices


@dataclass(frozen=True)
class Fault:
    """`order`: of the nodes; the first that is well is its victim. `delay_ms`, `is_held`: of a delay, of a hole."""

    at_s: float
    kind: str
    lasts_s: float
    order: tuple[str, ...]
    delay_ms: float = 0.0
    is_held: bool = False


def draw(seed: int, duration_s: float, nodes: Sequence[str]) -> list[Fault]:
    """All kinds equally often, in a new order each time round; none begins when little time is left."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    at_s = chance.uniform(1, 2)
    for kind in _kinds(chance):
        if at_s > duration_s - PAUSE_S[0]:
            return faults
        order = tuple(chance.sample(nodes, len(nodes)))
        lasts_s, delay_ms = chance.uniform(*LASTS_S[kind]), chance.uniform(*DELAY_MS)
        faults.append(Fault(at_s, kind, lasts_s, order, delay_ms, chance.random() < HELD_SHARE))
        at_s += chance.uniform(*PAUSE_S)
    raise AssertionError


def _kinds(chance: random.Random) -> Iterator[str]:
    for _ in itertools.count():
        yield from chance.sample(list(LASTS_S), len(LASTS_S))
