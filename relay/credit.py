"""What was sent to one end and isn't known to be read. Pure: the clock and the numbers of PINGs are handed in.

A server's send() proves nothing: Daphne's returns at once and buffers without limit, and behind it are a kernel and
perhaps a proxy. That a PONG came back proves that everything before its PING was read.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from relay import wire

OVERHEAD_BYTES = 2 * wire.KIB  # what a request or an answer costs beside its body: headers, bookkeeping
FRAME_BYTES = 256  # any other


def weight_of(frame: wire.Frame) -> int:
    if isinstance(frame, wire.Request | wire.Response):
        return OVERHEAD_BYTES + len(frame.body)
    if isinstance(frame, wire.Chunk):
        return FRAME_BYTES + len(frame.data)
    return 0 if isinstance(frame, wire.Ping | wire.Pong) else FRAME_BYTES


class Probe(NamedTuple):
    """A PING under way."""

    n: int
    position: int
    at: float


class Credit:
    __slots__ = ("_probes", "heard_at", "pinged_at", "pinged_position", "proved", "rtt_s", "sent")

    def __init__(self, now: float) -> None:
        self.sent = self.proved = self.pinged_position = 0  # bytes, counted from the connection's beginning
        self.pinged_at = self.heard_at = now  # of the last PING, of the last PONG
        self.rtt_s: float | None = None
        self._probes: deque[Probe] = deque()

    @property
    def unread(self) -> int:
        return self.sent - self.proved

    def is_ping_due(self) -> bool:
        return self.sent - self.pinged_position >= wire.PING_EACH_BYTES

    def ping(self, n: int, now: float) -> wire.Ping:
        self._probes.append(Probe(n, self.sent, now))
        self.pinged_position, self.pinged_at = self.sent, now
        return wire.Ping(n)

    def pong(self, n: int, now: float) -> bool:
        """False for the answer to a PING that isn't under way. It proves all earlier ones too."""
        if all(probe.n != n for probe in self._probes):
            return False
        while (probe := self._probes.popleft()).n != n:
            pass
        self.proved, self.heard_at, self.rtt_s = max(self.proved, probe.position), now, now - probe.at
        return True

    def is_stalled(self, now: float, ping_s: float) -> bool:
        """Nothing has been proved for one and a half periods, and a PING is under way for one."""
        if not self._probes:
            return False
        return now - self._probes[0].at >= ping_s and now - self.heard_at >= wire.STALL_PERIODS * ping_s
