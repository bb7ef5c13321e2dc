from __future__ import annotations

import threading
import time

from nodes.sleep import SleepWatch, since_boot
from tests.nodes.clocks import Time


def test_a_gap_is_told_once_with_its_length() -> None:
    clock, gaps = Time(), list[float]()
    watch = SleepWatch(20, gaps.append, clock)
    for passed_s in (1, 19, 60, 1, 20, 21):
        clock.now += passed_s
        watch.look()

    assert gaps == [60, 21]


def test_it_looks_by_itself_until_it_is_stopped() -> None:
    clock, slept = Time(), threading.Event()
    watch = SleepWatch(0.5, lambda gap_s: slept.set(), clock)
    clock.now += 60  # before it began to look
    watch.start()
    assert not slept.wait(0.3)
    clock.now += 60
    assert slept.wait(10)
    watch.stop()
    watch._thread.join(10)

    assert not watch._thread.is_alive()


def test_time_since_boot_never_runs_behind_the_time_awake() -> None:
    awake = time.monotonic()
    assert since_boot() >= awake
