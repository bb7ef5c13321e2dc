"""What a session's head reports of its route, written to the rows of its hops; and the names of those on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tracker.answers import Answer
from tracker.hopreports import PERCENTILES, FailoverReport, HopReport, Report
from tracker.models import Failover, Node, SessionHop

PATHS, KEPT = frozenset(SessionHop.Path.values), frozenset(Failover.Kept.values)
FIGURES = ("path", "steps", "ms_total", "compute_ms", "queue_ms", *PERCENTILES)  # of a hop's row


def write(session_pk: int, answer: Answer) -> list[SessionHop]:
    """The hops of all the session's routes, as its head has told of them: those of now, and those it went on without.
    Where it had no last word, what it told before stands, but for the tokens.

    No hop is said to have worked more tokens than the prompt and the answer have."""
    of_session = SessionHop.objects.filter(session=session_pk).order_by("epoch", "position")
    hops = list(of_session.select_related("node__joined_with"))
    if answer.last_told is None:
        return hops
    for hop, told in fill(hops, answer.last_told):
        if answer.report and told.tokens is not None:
            hop.tokens = min(told.tokens, answer.total_tokens)
        SessionHop.objects.filter(pk=hop.pk).update(**{name: getattr(hop, name) for name in ("tokens", *FIGURES)})
    write_failovers(session_pk, answer.last_told.failovers)
    return hops


def fill(hops: Collection[SessionHop], report: Report) -> list[tuple[SessionHop, HopReport]]:
    """Gives rows of one session their FIGURES; those that the head has told of, and what it told."""
    last_epoch = max((hop.epoch for hop in hops), default=0)
    rows = {(hop.epoch, hop.node.peer_id, hop.start_layer, hop.end_layer): hop for hop in hops if hop.node}
    filled = []
    for told in report.all_hops:
        epoch = last_epoch if told.epoch is None else told.epoch
        hop = rows.get((epoch, told.peer_id, told.start_layer, told.end_layer))
        if hop:
            _fill(hop, told)
            filled.append((hop, told))
    return filled


def _fill(hop: SessionHop, told: HopReport) -> None:
    hop.path = told.path if told.path in PATHS else ""
    hop.steps, hop.ms_total = told.steps, told.ms_total
    hop.compute_ms, hop.queue_ms = told.compute_ms, told.queue_ms
    for name in PERCENTILES:
        setattr(hop, name, told.percentiles.get(name))


def write_failovers(session_pk: int, failovers: Iterable[FailoverReport]) -> None:
    """How long it took where a head is lost the site itself knows (write_resumed)."""
    for failover in failovers:
        took = {} if failover.resume_ms is None else {"resume_ms": failover.resume_ms}
        Failover.objects.filter(session=session_pk, epoch=failover.epoch).update(
            kept=failover.kept if failover.kept in KEPT else "",
            replayed_tokens=failover.replayed_tokens,
            replay_compute_ms=failover.replay_compute_ms,
            **took,
        )


def write_resumed(session_pk: int, resume_ms: Mapping[int, float]) -> None:
    """By epoch: from the loss of a head to the next token."""
    for epoch, ms in resume_ms.items():
        Failover.objects.filter(session=session_pk, epoch=epoch).update(resume_ms=ms)


def names_of(peer_ids: Collection[str]) -> dict[str, str]:
    return dict(Node.objects.filter(peer_id__in=peer_ids).values_list("peer_id", "name"))


def names_on_routes(session_pk: int) -> dict[str, str]:
    """By peer id, of all epochs so far: heads take other routes without asking the proxy."""
    hops = SessionHop.objects.filter(session=session_pk, node__isnull=False)
    return dict(hops.values_list("node__peer_id", "node_name"))
