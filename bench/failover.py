"""How long a chat stands still when one of its nodes is killed: from SIGKILL to the next token, as its client sees it.

A tiny model in float32 on three pairs of nodes, one node of each pair on the route, all on this machine. The victim is
killed as soon as a certain token has come; the other one of its pair goes on. What had left before the kill and comes
after it isn't counted: the site says at which token it was noticed. The new route is filled from what the head has
kept: activations as they went over the wire or, with `--keep-activations 0`, token ids. A head that is lost takes its
own along. Each answer must be the undisturbed one.

    python -m bench.failover [--quick] [--json]
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.chats import Chat, ask
from bench.pairs import PLACES, Pairs
from bench.questions import END_OF_TEXT
from bench.report import finish, median, options, table
from tests.lab.site import Site
from tests.nodes.models import make_tiny_llama

MODEL = "tiny"
PROMPT = "the quick brown fox jumps over the lazy dog " * 4
NUM_TOKENS = 80
KILLED_AT = (15, 50)  # a token between these
KEPT_MB = {"activations": 256, "token ids": 0}
SEED = 5
TOLD_S = 5.0  # the site writes a session's end after its client has it
HEADER = ["killed", "heads keep", "times", "ms to the next token", "at worst", "as the site has it", "tokens replayed"]


@dataclass(frozen=True)
class Resumed:
    """One chat that survived. `told_ms`, `replayed`, `replay_ms`: what the site says it took, filled and computed."""

    victim: str
    keeps: str
    resume_ms: float
    told_ms: float
    replayed: int
    replay_ms: float


def main() -> None:
    chosen = options(__doc__)
    rounds, most_s = (3, 20.0) if chosen.quick else (20, math.inf)
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder) / "mesh") as site:
        site.model(MODEL, wire_dtype="float32", prefill_chunk="64")
        resumed = measure(site, Pairs(site, make_tiny_llama(Path(folder) / MODEL)), rounds, most_s)
    rows = [row(victim, keeps, resumed) for victim in PLACES for keeps in KEPT_MB]
    print(table([*HEADER, "computing that, ms"], [cells for cells in rows if cells]))
    figures = {f"{victim}_resume_ms": of(resumed, victim, "activations", "resume_ms") for victim in PLACES}
    figures["replay_compute_ms"] = [it.replay_ms for it in resumed]
    finish({name: round(median(values), 1) for name, values in figures.items()}, chosen.json)


def measure(site: Site, pairs: Pairs, rounds: int, most_s: float) -> list[Resumed]:
    """Each place in turn, so that who was killed is back before its place's turn comes again. Where that takes longer
    than `most_s` with what heads keep, there are fewer rounds."""
    chance, resumed = random.Random(SEED), list[Resumed]()
    for keeps, kept_mb in KEPT_MB.items():
        pairs.start(kept_mb)
        undisturbed, until = chat(site), time.monotonic() + most_s
        places = [place for place in PLACES if place != "head" or kept_mb]
        for number in range(rounds):
            for victim in places if not number or time.monotonic() < until else ():
                pairs.wait_until_ready()
                resumed.append(kill(site, pairs, victim, keeps, chance.randint(*KILLED_AT), undisturbed))
    pairs.wait_until_ready()  # nobody is stopped while it starts
    return resumed


def kill(site: Site, pairs: Pairs, victim: str, keeps: str, at_token: int, undisturbed: Chat) -> Resumed:
    killed: list[tuple[str, float]] = []

    def watch(running: Chat) -> None:
        if len(running.ids) >= at_token and not killed:
            name = pairs.on_route(victim)
            killed.append((name, time.perf_counter()))
            pairs.kill(name)

    survivor = chat(site, watch)
    [(name, moment)] = killed
    pairs.restart(name)
    assert survivor.ids == undisturbed.ids, f"{name} was killed at token {at_token}, and the answer is another"
    position, told_ms, replayed, replay_ms = told_of_last(pairs, name)
    waited_ms = (survivor.times[position - len(survivor.prompt_ids)] - moment) * 1000
    print(f"{name} killed at token {at_token}, heads keep {keeps}: {waited_ms:.0f} ms", flush=True)
    return Resumed(victim, keeps, waited_ms, told_ms, replayed, replay_ms)


def chat(site: Site, watch: Callable[[Chat], None] | None = None) -> Chat:
    return ask(site, MODEL, PROMPT, NUM_TOKENS, watch=watch, logit_bias={END_OF_TEXT: -100})


def told_of_last(pairs: Pairs, name: str) -> tuple[int, float, int, float]:
    """Of the session that ended now: tokens until the loss, the head's time to the next, the replay."""
    until = time.monotonic() + TOLD_S
    query = (
        "SELECT node_name, position, resume_ms, replayed_tokens, replay_compute_ms FROM tracker_failover "
        "WHERE resume_ms IS NOT NULL AND session_id = (SELECT max(id) FROM tracker_chatsession)"
    )
    while len(rows := pairs.rows(query)) != 1:
        assert time.monotonic() < until, f"{name} was killed; the site tells of {len(rows)} failovers"
        time.sleep(0.05)
    [(told, position, resumed_ms, replayed, replay_ms)] = rows
    assert told == name, f"{name} was killed; the site says {told}"
    return position, resumed_ms, replayed, replay_ms


def of(resumed: list[Resumed], victim: str, keeps: str, figure: str) -> list[float]:
    return [getattr(it, figure) for it in resumed if (it.victim, it.keeps) == (victim, keeps)]


def row(victim: str, keeps: str, resumed: list[Resumed]) -> list[str]:
    waits = of(resumed, victim, keeps, "resume_ms")
    if not waits:
        return []
    told = [f"{median(of(resumed, victim, keeps, name)):.1f}" for name in ("told_ms", "replayed", "replay_ms")]
    return [victim, keeps, str(len(waits)), f"{median(waits):.0f}", f"{max(waits):.0f}", *told]


if __name__ == "__main__":
    main()
