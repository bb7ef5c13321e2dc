"""Notices that this machine or process has slept: a closed lid, a paused virtual machine, a SIGSTOP.

Whoever sleeps knows nothing of it. Meanwhile others have taken over its sessions, its connections may be dead without
a word, and its lease is over. So a gap in time that nothing else explains is taken for sleep, and told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SLEEP_GAP_S = 20.0  # as long as a lease: after that nobody counts on this node any more
LOOK_S = 1.0


def since_boot() -> float:
    """Seconds, those included in which the machine slept: time.monotonic() stands still then. Linux."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SleepWatch:
    """`slept` is called with the seconds, on a thread of this watch."""

    def __init__(self, gap_s: float, slept: Callable[[float], None], clock: Callable[[], float] = since_boot) -> None:
        self._gap_s, self._slept, self._clock = gap_s, slept, clock
        self._looked_at = clock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sleep", daemon=True)

    def start(self) -> None:
        self._looked_at = self._clock()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def look(self) -> None:
        now = self._clock()
        gap_s, self._looked_at = now - self._looked_at, now
        if gap_s > self._gap_s:
            self._slept(gap_s)

    def _run(self) -> None:
        while not self._stopping.wait(min(LOOK_S, self._gap_s / 4)):
            self.look()
