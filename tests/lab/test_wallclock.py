from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.lab.processes import environment
from tests.lab.wallclock import WallClock

SHOW = """
import time
input()
print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
"""


def test_a_wall_clock_is_off_and_jumps_while_the_others_stay_true(tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "clock", 3600)
    program = SHOW * 2
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(**clock.env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        for off_s in (3600, -5):
            clock.set(off_s)
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic, since_boot = map(float, process.stdout.readline().split())
            assert abs(wall - off_s - time.time()) < 60
            assert abs(monotonic - time.monotonic()) < 60
            assert abs(since_boot - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
