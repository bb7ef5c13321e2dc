"""What a session's head reports of its route, written to the rows of its hops; and the names of those on it."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import F

from tracker.answers import Answer
from tracker.models import Failover, Node, SessionHop

PATHS, KEPT = frozenset(SessionHop.Path.values), frozenset(Failover.Kept.values)


def write(session_pk: int, answer: Answer) -> None:
    """What a head says of the hops of the session's route, and of what it has gone on without."""
    report = answer.report
    if report is None:
        return
    of_session = SessionHop.objects.filter(session=session_pk)
    for hop in report.all_hops:
        mine = of_session.filter(node__peer_id=hop.peer_id, start_layer=hop.start_layer, end_layer=hop.end_layer)
        mine.filter(epoch=F("session__epoch") if hop.epoch is None else hop.epoch).update(
            path=hop.path if hop.path in PATHS else "",
            steps=hop.steps,
            tokens=None if hop.tokens is None else min(hop.tokens, answer.total_tokens),
            ms_total=hop.ms_total,
            compute_ms=hop.compute_ms,
            queue_ms=hop.queue_ms,
        )
    for told in report.failovers:
        Failover.objects.filter(session=session_pk, epoch=told.epoch).update(
            kept=told.kept if told.kept in KEPT else "",
            resume_ms=told.resume_ms,
            replayed_tokens=told.replayed_tokens,
            replay_compute_ms=told.replay_compute_ms,
        )


def names_of(peer_ids: Collection[str]) -> dict[str, str]:
    return dict(Node.objects.filter(peer_id__in=peer_ids).values_list("peer_id", "name"))


def names_on_routes(session_pk: int) -> dict[str, str]:
    """By peer id, of all epochs so far: heads take other routes without asking the proxy."""
    hops = SessionHop.objects.filter(session=session_pk, node__isnull=False)
    return dict(hops.values_list("node__peer_id", "node_name"))
