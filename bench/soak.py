"""Traffic and churn for a while: whether the servers' memory and Redis' keys stay bounded.

Ends come and go under new names, in the middle of things and in error, while others ask and answer. After each batch
the memory is read. The first third is warming up; of the rest, the least of each part counts, since what was in use
for a moment is no leak, and the slope is the median of the slopes between all pairs of these.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from bench.churn import Churning
from bench.load import Answering, Asking, End, Line, Sample
from bench.report import finish, median, options, table
from bench.servers import Server
from bench.tongues import V1

BATCH_S = 0.5
BODY_BYTES = (1200, 8192, 65536)  # batch by batch
CALLERS = 16
WARM_UP = 3  # the first of so many parts
NUM_PARTS = 20  # of the rest


@dataclass(frozen=True)
class Reading:
    num_requests: int
    rss_kib: list[int]  # of each server


def main() -> None:
    chosen = options(__doc__)
    num_batches = 70 if chosen.quick else 1000
    with tempfile.TemporaryDirectory() as folder, Server("bench.settings", Path(folder) / "one") as server:
        lines = [Line("kept", V1(), server.url, server.url, CALLERS)]
        readings = soak([server], lines, num_batches)
    rows = [[str(it.num_requests), ", ".join(map(str, it.rss_kib))] for it in thinned(readings, 10)]
    print(table(["requests", "RSS, KiB"], rows))
    finish({"soak_requests": readings[-1].num_requests, "soak_rss_kib_per_10k": slope_per_10k(readings)}, chosen.json)


def soak(servers: Sequence[Server], lines: Sequence[Line], num_batches: int) -> list[Reading]:
    readings: list[Reading] = []
    num_requests = 0
    with (
        End(Answering, lines),
        End(Asking, lines) as asking,
        End(Churning, lines) as churning,
        ThreadPoolExecutor(1) as beside,
    ):
        for number in range(num_batches):
            line, num_bytes = lines[number % len(lines)], BODY_BYTES[number % len(BODY_BYTES)]
            played = beside.submit(churning.call, "play", BATCH_S)
            sample: Sample = asking.call("measure", line.name, num_bytes, CALLERS, BATCH_S)
            num_requests += len(sample.rtts_s) + played.result()
            readings.append(Reading(num_requests, [server.rss_kib() for server in servers]))
    return readings


def slope_per_10k(readings: Sequence[Reading]) -> float:
    """In KiB, of the server that grows most."""
    settled = readings[len(readings) // WARM_UP :]
    size = -(-len(settled) // NUM_PARTS)
    parts = [settled[start : start + size] for start in range(0, len(settled), size)]
    numbers = [part[-1].num_requests for part in parts]
    least = [[min(rss_kib) for rss_kib in zip(*(it.rss_kib for it in part), strict=True)] for part in parts]
    return round(max(slope(numbers, rss_kib) for rss_kib in zip(*least, strict=True)) * 10_000, 1)


def slope(x: Sequence[int], y: Sequence[int]) -> float:
    """After Theil and Sen."""
    points = list(zip(x, y, strict=True))
    return median([(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2)])


def thinned(readings: Sequence[Reading], number: int) -> list[Reading]:
    return list(readings[:: -(-len(readings) // number)])
