"""Chats while nodes are killed, stopped, cut off and slowed: whether each text stays right, and what is left behind.

Three nodes and two spares of a tiny model in float32, and four askers, one chat after another each. First each question
is asked undisturbed; what is told later, streamed or not, must be the same, once and whole, or end in one typed error.
At the end nothing may be left: no tokens at the nodes, no session that runs, no request at the relay.

    python -m bench.chaos [--quick] [--json] [--seed N] [--logs FOLDER]
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.disturbed import MODEL, NODES, Disturbed
from bench.faults import Fault, draw
from bench.leftovers import Leftovers, wait_for_rest
from bench.questions import QUESTIONS, Told, ask
from bench.report import finish, median, parser, table

NUM_ASKERS = 4
DURATION_S = 600
QUICK_S = 60
LEAST_FAULTS, LEAST_CHATS = 30, 40  # in DURATION_S
HANG_S = 75.0  # the site's deadline for a chat, and time to say that it is over
REFUSED_PAUSE_S = 0.5  # after a chat that couldn't begin
MAX_SHOWN = 5


@dataclass
class Tally:
    """What all askers were told; filled by many threads."""

    told: list[Told] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def answered(self) -> list[Told]:
        return [told for told in self.told if not told.error and not told.hung]

    @property
    def num_hangs(self) -> int:
        return sum(told.hung for told in self.told)

    @property
    def errors(self) -> Counter[str]:
        return Counter(told.error for told in self.told if told.error)


def main() -> None:
    options = parser(__doc__, quick="one minute of faults instead of ten")
    options.add_argument(
        "--seed", type=int, default=1, help="of the faults and of who asks what (default: %(default)s)"
    )
    options.add_argument("--logs", type=Path, metavar="FOLDER", help="write what each process said into this folder")
    chosen = options.parse_args()
    duration_s, began = QUICK_S if chosen.quick else DURATION_S, time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    with Disturbed() as mesh:
        try:
            say("the mesh is ready; each question is asked undisturbed")
            expected = [undisturbed(mesh, number) for number in range(len(QUESTIONS))]
            say("faults begin")
            tally, suffered = disturb(mesh, expected, duration_s, chosen.seed)
            say("faults and chats are over")
            left = wait_for_rest(mesh)
            failovers = mesh.rows("SELECT kind, kept, resume_ms FROM tracker_failover ORDER BY at")
            say(f"at rest after {left.took_s:.1f} s")
            print(left.table())
        finally:
            if chosen.logs:
                write_logs(mesh, chosen.logs)
    say("stopped")
    print(chats_table(expected))
    print(faults_table(suffered))
    print(errors_table(tally))
    print(failovers_table(failovers))
    figures = {
        "faults": len(suffered),
        "chats": len(tally.answered),
        "wrong_texts": len(tally.wrong),
        "hangs": tally.num_hangs,
        "leaked_tokens": left.tokens,
        "stuck_sessions": left.sessions,
        "open_requests": left.requests,
        "errors": sum(tally.errors.values()),
        "failovers": len(failovers),
    }
    problems = found_wrong(tally, left, len(suffered), duration_s)
    print("\n".join(problems))
    finish(figures, chosen.json)
    sys.exit(1 if problems else 0)


def undisturbed(mesh: Disturbed, number: int) -> Told:
    told = ask(mesh.site.local_url, mesh.site.headers, MODEL, QUESTIONS[number], streamed=True)
    assert told.text, f"question {number}, undisturbed: {told}"
    assert not told.error, f"question {number}, undisturbed: {told}"
    return told


def disturb(
    mesh: Disturbed, expected: list[Told], duration_s: float, seed: int
) -> tuple[Tally, list[tuple[Fault, str]]]:
    """The faults that befell someone, and what was told meanwhile."""
    tally, over, began = Tally(), threading.Event(), time.monotonic()
    faults = draw(seed, duration_s, list(NODES))
    with ThreadPoolExecutor(NUM_ASKERS) as askers, ThreadPoolExecutor(len(faults)) as sufferers:
        asking = [askers.submit(ask_until, over.is_set, mesh, expected, tally, seed + n) for n in range(NUM_ASKERS)]
        suffering: list[Future[str | None]] = []
        try:
            for fault in faults:
                time.sleep(max(0.0, began + fault.at_s - time.monotonic()))
                suffering.append(sufferers.submit(mesh.suffer, fault))
            time.sleep(max(0.0, began + duration_s - time.monotonic()))
        finally:
            over.set()
        victims = [future.result() for future in suffering]
        for future in asking:
            future.result()
    return tally, [(fault, victim) for fault, victim in zip(faults, victims, strict=True) if victim]


def ask_until(is_over: Callable[[], bool], mesh: Disturbed, expected: list[Told], tally: Tally, seed: int) -> None:
    chance = random.Random(seed)
    while not is_over():
        number, streamed = chance.randrange(len(QUESTIONS)), chance.random() < 0.5
        url, headers = mesh.site.local_url, mesh.site.headers
        told = ask(url, headers, MODEL, QUESTIONS[number], streamed=streamed, limit_s=HANG_S)
        tally.told.append(told)
        if wrong := told.compare(expected[number]):
            tally.wrong.append(f"question {number}, {'' if streamed else 'un'}streamed, {told.took_s:.1f} s: {wrong}")
        if told.error and not told.text:
            time.sleep(REFUSED_PAUSE_S)


def found_wrong(tally: Tally, left: Leftovers, num_faults: int, duration_s: float) -> list[str]:
    """Whatever makes the run a failure, and the errors chats ended with."""
    share = duration_s / DURATION_S
    problems = [f"wrong: {wrong}" for wrong in tally.wrong[:MAX_SHOWN]]
    if tally.num_hangs:
        problems.append(f"{tally.num_hangs} chats had no end after {HANG_S:g} s")
    if num_faults < LEAST_FAULTS * share or len(tally.answered) < LEAST_CHATS * share:
        problems.append("too few faults or chats to say anything")
    return problems + left.problems()


def chats_table(expected: list[Told]) -> str:
    rows = [[str(number), str(len(told.ids)), f"{told.took_s:.1f}"] for number, told in enumerate(expected)]
    return table(["question", "tokens", "s, undisturbed and alone"], rows)


def errors_table(tally: Tally) -> str:
    """With the longest wait for one of each, and the last one's words."""
    rows = []
    for code, times in tally.errors.most_common():
        ended = [told for told in tally.told if told.error == code]
        rows.append([code, str(times), f"{max(told.took_s for told in ended):.1f}", ended[-1].message])
    return table(["chats that ended in", "times", "s at worst", "said last"], rows)


def faults_table(suffered: list[tuple[Fault, str]]) -> str:
    kinds = Counter((fault.kind, victim) for fault, victim in suffered)
    return table(
        ["fault", "of", "times"], [[kind, victim, str(times)] for (kind, victim), times in sorted(kinds.items())]
    )


def failovers_table(failovers: list[tuple[str, str, float | None]]) -> str:
    rows = []
    for kind in sorted({(kind, kept) for kind, kept, _ in failovers}):
        took = [ms for *of, ms in failovers if tuple(of) == kind and ms is not None]
        known = [f"{median(took):.0f}", f"{max(took):.0f}"] if took else ["", ""]
        rows.append(
            [
                kind[0],
                kind[1] or "nothing: no token was told",
                str(sum(tuple(of) == kind for *of, _ in failovers)),
                *known,
            ]
        )
    return table(["lost", "filled from", "times", "ms to the next token", "at worst"], rows)


def write_logs(mesh: Disturbed, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "web.log").write_text(mesh.site.log())
    for number, (name, process) in enumerate(mesh.past):
        (folder / f"{name}-{number:03}.log").write_text(process.output)


if __name__ == "__main__":
    main()
