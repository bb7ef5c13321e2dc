"""Writes down once a minute how it goes with each node: round trips, steps through it, traffic, sessions.

Only processes that hold the relay's sockets know the traffic, so this is no part of the tick, which may run anywhere.
All of them keep the counters in mind and one writes: when that one dies, the next one loses a minute or two.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Q, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from relay import report
from relay.report import Row
from tracker.models import ChatSession, Lease, Node, NodeSample, SessionHop
from tracker.news import PERIOD_S as NEWS_PERIOD_S
from tracker.repeated import Repeated

PERIOD_S = 60.0
PERIOD = timedelta(seconds=PERIOD_S)
LEASE = 1.5 * PERIOD  # of the process that writes
KEPT = timedelta(hours=2)
BATCH = 200  # nodes whose round trips are written with one statement


@dataclass(frozen=True, slots=True)
class Count:
    """What the relay has counted of one connection, from its beginning."""

    since: float  # Unix seconds
    bytes_in: int
    bytes_out: int


class Traffic:
    """What came and went between two readings, of counters that begin at 0 with each connection. Pure.

    Of a connection that ended between them, what it had carried since the first is lost.
    """

    def __init__(self, begun: float) -> None:
        self._counts: dict[str, Count] = {}  # by peer_id
        self._read_at = begun  # of what is older than that, the beginning isn't known

    def since_last(self, rows: Iterable[Row], now: float) -> dict[str, tuple[int, int]]:
        """(bytes from it, bytes to it) by peer_id."""
        counts: dict[str, Count] = {}
        carried: dict[str, tuple[int, int]] = {}
        for row in rows:
            before, figures = self._counts.get(row.peer_id), row.figures
            if figures is None:  # its process hasn't told them
                if before:
                    counts[row.peer_id] = before
                continue
            count = counts[row.peer_id] = Count(row.since, figures.bytes_in, figures.bytes_out)
            carried[row.peer_id] = self._carried(before, count)
        self._counts, self._read_at = counts, now
        return carried

    def _carried(self, before: Count | None, count: Count) -> tuple[int, int]:
        if before and before.since == count.since:
            return max(0, count.bytes_in - before.bytes_in), max(0, count.bytes_out - before.bytes_out)
        return (count.bytes_in, count.bytes_out) if count.since >= self._read_at else (0, 0)


class Readings:
    """The readings of one process, which writes them while it holds the lease."""

    def __init__(self, holder: str, begun: float) -> None:
        self._holder, self._traffic = holder, Traffic(begun)

    def take(self, now: datetime) -> bool:
        """True where it was this process's turn to write."""
        rows = report.rows()
        carried = self._traffic.since_last(rows, now.timestamp())
        if not Lease.take("readings", self._holder, now, LEASE):
            return False
        write(now, {row.peer_id: row for row in rows}, carried)
        NodeSample.objects.filter(at__lt=now - KEPT).delete()
        return True


def write(now: datetime, rows: dict[str, Row], carried: dict[str, tuple[int, int]]) -> int:
    """A sample of each node that is connected or was heard of; how many there were."""
    heard_of = Node.objects.filter(Q(peer_id__in=rows) | Q(lease_until__gt=now))
    nodes = list(heard_of.only("peer_id", "rtt_ms", "sessions", "cached_tokens"))
    took = hop_times(now)
    samples = []
    for node in nodes:
        bytes_in, bytes_out = carried.get(node.peer_id, (0, 0))
        load = {"sessions": node.sessions, "cached_tokens": node.cached_tokens}
        node.rtt_ms = rtt_ms_of(rows.get(node.peer_id))
        sample = NodeSample(node=node, at=now, rtt_ms=node.rtt_ms, hop_ms=took.get(node.pk), **load)
        sample.bytes_in, sample.bytes_out = bytes_in, bytes_out
        samples.append(sample)
    NodeSample.objects.bulk_create(samples, batch_size=BATCH)
    Node.objects.bulk_update([node for node in nodes if node.rtt_ms is not None], ["rtt_ms"], batch_size=BATCH)
    return len(samples)


def rtt_ms_of(row: Row | None) -> float | None:
    """Of the relay's last ping; None of one without a socket, with one of version 1, or not told yet."""
    rtt_s = row.figures.rtt_s if row and row.figures else None
    return None if rtt_s is None else rtt_s * 1000


def hop_times(now: datetime) -> dict[int, float]:
    """How many ms a step through each node took, by its key, in sessions that run or ended within the last minute."""
    since = now - PERIOD
    told = ChatSession.objects.filter(last_news__gt=since - timedelta(seconds=2 * NEWS_PERIOD_S))  # has an index
    lately = told.filter(Q(ended__gt=since) | Q(ended=None, state=ChatSession.State.RUNNING))
    hops = SessionHop.objects.filter(session__in=lately, steps__gt=0).exclude(node=None).order_by()
    a_step = F("compute_p50_ms") + F("network_p50_ms") + F("queue_p50_ms")  # of decoding, where its head told it
    mean = Sum(F("steps") * Coalesce(a_step, F("ms_total") / F("steps"))) / Sum("steps")
    return {pk: ms for pk, ms in hops.values_list("node").annotate(ms=mean) if ms is not None}


readings = Readings(secrets.token_hex(8), time.time())
reader = Repeated("readings of the nodes", lambda: readings.take(timezone.now()))
