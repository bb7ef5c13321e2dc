"""Kills what runs in network namespaces once the tests that made them have ended: run by namespaces.py.

It is given the namespaces' descriptors over the socket that is its standard input, and holds them, so that their
numbers can't become another's. That socket ends with the process of the tests, also when that was killed. It imports
nothing but the standard library and reads no settings.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

DEADLINE_S = 15.0
Key = tuple[int, int]


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kept = set(namespaces(socket.socket(fileno=0)))
    until = time.monotonic() + DEADLINE_S
    while (left := inside(kept)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def namespaces(giver: socket.socket) -> list[Key]:
    """Until the giver has gone. Their descriptors stay open."""
    keys = []
    while True:
        data, descriptors, _, _ = socket.recv_fds(giver, 1, 1)
        keys += [_key(os.stat(descriptor)) for descriptor in descriptors]
        if not data:
            return keys


def inside(kept: set[Key]) -> list[int]:
    """The processes in any of these namespaces."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if _key(os.stat(f"/proc/{entry.name}/ns/net")) in kept:
                    found.append(int(entry.name))
    return found


def _key(status: os.stat_result) -> Key:
    return status.st_dev, status.st_ino


if __name__ == "__main__":
    main()
