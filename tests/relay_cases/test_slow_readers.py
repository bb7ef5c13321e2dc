"""R7. A peer stops reading while callers go on sending: the relay pays a bounded amount for it, and nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.lab.ends import Answer, Asking, Envelope, framed
from tests.relay_cases.served import Deployment, Served, World

MIB = 1024 * 1024
NUM_REQUESTS = {1: 100, 2: 300}  # reading a megabyte of base64 takes the relay far longer than passing one on
NUM_USUAL_REQUESTS, NUM_CALLERS = 60, 4


@pytest.fixture(scope="module")
def own_served() -> Iterator[Served]:
    """Whose memory is what these cases made it."""
    with Served() as served:
        yield served


@pytest.fixture
def world(own_served: Served, version: int) -> Iterator[World]:
    with World(Deployment(own_served, own_served), version) as world:
        yield world


class Flood:
    """Callers that send 1 MiB after 1 MiB to one peer, each as soon as its last request has an outcome."""

    def __init__(self, world: World, to: str, num_requests: int) -> None:
        self.statuses: list[int] = []
        self._num_each = num_requests // NUM_CALLERS
        callers = [world.caller(to, f"{number:04x}") for number in range(NUM_CALLERS)]
        self._threads = [threading.Thread(target=self._send, args=[caller]) for caller in callers]

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    @property
    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _send(self, caller: Asking) -> None:
        envelope = {"request_id": "1", "to": caller.to, "method": "POST", "path": "/forward", "headers": {}}
        frame = framed(caller.language.encode(envelope | {"deadline_ms": 50}, b"\xff" * MIB))
        for _ in range(self._num_each):
            caller.say_frame(frame)
            self.statuses.append(caller.hear().status)


def round_trips(caller: Asking, flood: Flood) -> list[float]:
    """Seconds each, as long as the flood lasts."""
    times = []
    while not flood.is_over:
        started = time.perf_counter()
        assert caller.asked("1", b"x").body == b"x"
        times.append(time.perf_counter() - started)
        time.sleep(0.002)
    return times


def p99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def test_a_peer_that_stops_reading_pins_little_memory_and_slows_nobody_else(world: World) -> None:
    """R7. Beside the same flood at a peer that reads, and answers: what is left is the stalling's own part."""

    def small(envelope: Envelope, body: bytes) -> Answer:
        return 200, {}, b"x"

    world.peer("aa11", small)
    world.peer("bb22", small)
    world.peer("dd44", reads=False)
    other = world.caller("aa11")
    with Flood(world, "bb22", NUM_USUAL_REQUESTS) as read:
        usual = round_trips(other, read)
    before_mib = world.peers_at.resident_mib()
    world.peers_at.forget_peak()
    with Flood(world, "dd44", NUM_REQUESTS[world.version]) as stalled:
        disturbed = round_trips(other, stalled)
    assert world.peers_at.peak_mib() - before_mib < 64
    assert len(stalled.statuses) == NUM_REQUESTS[world.version]
    assert set(read.statuses) <= {200, 504}
    assert set(stalled.statuses) <= {429, 503, 504}
    assert p99(disturbed) < 2 * p99(usual) + 0.1, "were they held up by it, it would be seconds"
