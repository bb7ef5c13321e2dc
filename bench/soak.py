"""Traffic and churn for a while: whether the servers' memory and Redis' keys stay bounded.

Two processes over Redis. Ends come and go under new names, in the middle of things and in error, while others ask and
answer, in one process and across. After each batch memory and keys are counted. The first half is warming up; of the
rest, the least of each part counts, since what was in use for a moment is no leak, and the slope is the median of the
slopes between all pairs of these.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import redis

from bench.churn import Churning
from bench.load import Asking, End, Line, Sample, wait_until_reachable
from bench.report import finish, median, options, table
from bench.servers import Server, two_over_redis
from bench.tongues import V1, V2

BATCH_S = 0.5
BODY_BYTES = (1200, 8192, 65536)  # batch by batch
CALLERS = 16
WARM_UP = 2  # the first of so many parts
NUM_PARTS = 20  # of the rest


@dataclass(frozen=True)
class Reading:
    num_requests: int
    rss_kib: list[int]  # of each server
    redis_keys: int


def main() -> None:
    chosen = options(__doc__)
    num_batches = 75 if chosen.quick else 1000
    with tempfile.TemporaryDirectory() as folder, two_over_redis(Path(folder)) as (here, there, bus):
        lines = [
            Line("tunnel", V2(), here.url, here.url, CALLERS),
            Line("kept", V1(), here.url, here.url, CALLERS),
            Line("two processes", V2(), here.url, there.url, CALLERS),
        ]
        readings = soak([here, there], lines, num_batches, redis.Redis.from_url(bus.url))
    rows = [[str(it.num_requests), *map(str, it.rss_kib), str(it.redis_keys)] for it in thinned(readings, 10)]
    print(table(["requests", "RSS here, KiB", "RSS there, KiB", "keys in Redis"], rows))
    figures = {
        "soak_requests": readings[-1].num_requests,
        "soak_rss_kib_per_10k": slope_per_10k(readings),
        "soak_most_redis_keys": max(reading.redis_keys for reading in readings),
    }
    finish(figures, chosen.json)


def soak(servers: Sequence[Server], lines: Sequence[Line], num_batches: int, keys: redis.Redis) -> list[Reading]:
    readings: list[Reading] = []
    num_requests = 0
    with (
        End(Asking, lines) as asking,
        End(Churning, [line for line in lines if line.caller_url == line.peer_url]) as churning,
        ThreadPoolExecutor(1) as beside,
    ):
        for line in lines:
            wait_until_reachable(line)
        for number in range(num_batches):
            line = lines[number % len(lines)]
            num_bytes = BODY_BYTES[number // len(lines) % len(BODY_BYTES)]
            played = beside.submit(churning.call, "play", BATCH_S)
            sample: Sample = asking.call("measure", line.name, num_bytes, CALLERS, BATCH_S)
            num_requests += len(sample.rtts_s) + played.result()
            readings.append(Reading(num_requests, [server.rss_kib() for server in servers], keys.dbsize()))
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
