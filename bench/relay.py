"""What the relay costs: a request and its answer through it, beside a bare echo on the same server, in the same run.

A relayed call is four operations on the server's sockets against the echo's two, so the ceilings are 2 and 0.5. The
callers and the peers are websocket-client in a process of their own; each caller has a peer of its own. The lines take
turns in short slices, and figures are ratios of slices that follow each other, so that a drift of the machine cancels.

    python -m bench.relay [--quick] [--json]
    python -m bench.relay soak [--quick] [--json]       traffic and churn: whether memory and Redis stay bounded
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a file: this folder would be searched first, and `relay` be this module
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench import soak
from bench.load import Answering, Asking, End, Line, Sample, wait_until_reachable
from bench.report import finish, median, options, ratio, table
from bench.servers import Server, allow_many_files, two_over_redis
from bench.tongues import V1, V2, Echo

KIB = 1024
NUM_IDLE = 1000
NUM_WARMING_UP = 50
MOST_CALLERS = 64


@dataclass(frozen=True)
class Cell:
    body: str
    num_bytes: int
    callers: int


SMALL, STEP, LARGE = ("1.2 KB", 1200), ("8 KB", 8 * KIB), ("1 MiB", KIB * KIB)
LATENCY, THROUGHPUT = Cell(*SMALL, 1), Cell(*SMALL, 16)  # what the figures on the last line are of
KEYS = [LATENCY, THROUGHPUT]
QUICK = [Cell(*SMALL, 64), Cell(*STEP, 1), Cell(*STEP, 16), Cell(*LARGE, 1)]
FULL = [*QUICK, Cell(*STEP, 64), Cell(*LARGE, 16)]
EACH = 3  # of so many rounds one is of all cells, the others of those above


@dataclass(frozen=True)
class Run:
    rtt_ms: float  # the slice's median
    per_s: float
    server_us: float  # of processor time, per request
    busy: float  # share of its core that the busiest server used: near 1 it, not the load, was the limit


Runs = dict[tuple[str, Cell], list[Run]]


def main() -> None:
    if sys.argv[1:2] == ["soak"]:
        del sys.argv[1]
        return soak.main()
    chosen = options(__doc__)
    rounds, slice_s, others = (9, 0.15, QUICK) if chosen.quick else (27, 0.4, FULL)
    allow_many_files()
    with servers() as lines:
        idle_kib = rss_per_idle_peer(lines, settle_s=2 if chosen.quick else 25)
        runs = measure(lines, others, rounds, slice_s)
    print(table(HEADER, [row(runs, line, cell) for cell in (*KEYS, *others) for line in lines]))
    finish(figures(runs) | {"rss_kib_per_idle_peer": idle_kib}, chosen.json)


@contextmanager
def servers() -> Iterator[dict[Line, list[Server]]]:
    """The lines to be measured, with the servers that each goes through."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        echo = stack.enter_context(Server("bench.echo"))
        one = stack.enter_context(Server("bench.settings", folder / "one"))
        here, there, _ = stack.enter_context(two_over_redis(folder))
        yield {
            Line("echo", Echo(), echo.url, callers=MOST_CALLERS): [echo],
            Line("tunnel", V2(), one.url, one.url, MOST_CALLERS): [one],
            Line("kept", V1(), one.url, one.url, MOST_CALLERS): [one],
            Line("per hop", V1(), one.url, one.url, MOST_CALLERS, is_kept=False): [one],
            Line("two processes", V2(), here.url, there.url, MOST_CALLERS): [here, there],
        }


def rss_per_idle_peer(lines: dict[Line, list[Server]], settle_s: float) -> float:
    """In KiB. Some peers come and go first: what the first of anything costs isn't a peer's."""
    line, (server,) = next((line, through) for line, through in lines.items() if line.name == "tunnel")
    with End(Answering, [Line("first", line.tongue, server.url, server.url, NUM_WARMING_UP)]):
        pass
    time.sleep(1)
    before = server.rss_kib()
    with End(Answering, [Line("idle", line.tongue, server.url, server.url, NUM_IDLE)]):
        time.sleep(settle_s)
        return round((server.rss_kib() - before) / NUM_IDLE, 1)


def measure(lines: dict[Line, list[Server]], others: list[Cell], rounds: int, slice_s: float) -> Runs:
    """All lines of a cell in turn, then the next cell, then all again; the first round warms up."""
    runs: Runs = defaultdict(list)
    with_peers = [line for line in lines if line.peer_url]
    with End(Answering, [line for line in lines if not line.is_kept]), End(Asking, list(lines)) as asking:
        for line in with_peers:
            wait_until_reachable(line)
        for number in range(rounds + 1):
            for cell in (*KEYS, *others) if number % EACH == 0 else KEYS:
                for line, through in lines.items():
                    run = one_slice(asking, line, through, cell, slice_s if number else slice_s / 5)
                    if number:
                        runs[line.name, cell].append(run)
    return runs


def one_slice(asking: End, line: Line, through: list[Server], cell: Cell, slice_s: float) -> Run:
    before = [server.cpu_s() for server in through]
    sample: Sample = asking.call("measure", line.name, cell.num_bytes, cell.callers, slice_s)
    used_s = [server.cpu_s() - began for server, began in zip(through, before, strict=True)]
    return Run(
        rtt_ms=median(sample.rtts_s) * 1000,
        per_s=sample.per_s,
        server_us=sum(used_s) * 1e6 / len(sample.rtts_s),
        busy=max(used_s) / sample.elapsed_s,
    )


HEADER = ["body", "callers", "", "round trip, ms", "of the echo's", "per second", "of the echo's", "server µs", "busy"]


def row(runs: Runs, line: Line, cell: Cell) -> list[str]:
    def figure(name: str) -> str:
        return f"{median(column(runs, line.name, cell, name)):.2f}"

    def of_echo(name: str) -> str:
        return "" if line.name == "echo" else f"{compare(runs, line.name, 'echo', cell, name):.2f}"

    times, rates = (figure("rtt_ms"), of_echo("rtt_ms")), (figure("per_s").split(".")[0], of_echo("per_s"))
    return [cell.body, str(cell.callers), line.name, *times, *rates, figure("server_us").split(".")[0], figure("busy")]


def column(runs: Runs, line: str, cell: Cell, name: str) -> list[float]:
    return [getattr(run, name) for run in runs[line, cell]]


def compare(runs: Runs, above: str, below: str, cell: Cell, name: str) -> float:
    return ratio(column(runs, above, cell, name), column(runs, below, cell, name))


def figures(runs: Runs) -> dict[str, float]:
    return {
        "tunnel_rtt_over_echo": compare(runs, "tunnel", "echo", LATENCY, "rtt_ms"),
        "tunnel_rps_over_echo": compare(runs, "tunnel", "echo", THROUGHPUT, "per_s"),
        "tunnel_rps_over_echo_by_server_time": compare(runs, "echo", "tunnel", THROUGHPUT, "server_us"),
        "perhop_rtt_over_tunnel": compare(runs, "per hop", "tunnel", LATENCY, "rtt_ms"),
        "two_process_rtt_over_one": compare(runs, "two processes", "tunnel", LATENCY, "rtt_ms"),
    }


if __name__ == "__main__":
    main()
