"""One node: its state and why, what it holds and why that, how it went in the last hours, its sessions and failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import Http404

from relay import report
from relay.report import Row
from tracker import bans
from tracker.candidates import loaded
from tracker.dashboard import lines
from tracker.dashboard.lines import Line, Point
from tracker.dashboard.node_actions import offered
from tracker.dashboard.node_rows import Sample, points, row_of, samples_of
from tracker.dashboard.pages import Ask, Context, Page
from tracker.models import ChatSession, Contribution, Failover, Move, Node, SessionHop
from tracker.readings import KEPT
from tracker.tallies import day_of
from tracker.words import layers_in_words

MAX_SESSIONS, MAX_FAILOVERS, MAX_MOVES, DAYS = 20, 20, 5, 14
LAYERS_IN_A_ROW = 4  # times that one session may come to a node, as its route changes


def context(ask: Ask) -> Context:
    related = ("model", "shard", "joined_with")
    found = Node.objects.filter(pk=ask.arg("pk")).select_related(*related)
    if not (told := loaded(found, ask.now)):
        raise Http404("There is no such node here (any more).")
    [node] = told
    peer = next((row for row in report.rows() if row.peer_id == node.peer_id), None)
    samples = samples_of([node.pk], ask.now - KEPT).get(node.pk, ())
    served = served_of(node, ask.now)
    end = lines.newest([points(samples, lambda _: None)], ask.now)
    row = row_of(node, ask.now, peer, samples, end, sum(day["token_layers"] for day in served))
    near, seldom = offered(node, ask.now)
    return {
        "node": node,
        "row": row,
        "connection": connection_of(node, peer, ask.now),
        "near": near,
        "seldom": seldom,
        "is_banned": node.ban(ask.now) is not None,
        "ban_periods": {name: words for name, (words, _) in bans.PERIODS.items()},
        "breaker": node.breaker if node.breaker_openings or node.breaker_until else None,
        "charts": charts_of(samples, end),
        "span": KEPT,
        "served": served,
        "days": DAYS,
        "sessions": sessions_of(node, ask.now),
        "failovers": failovers_of(node),
        "moves": moves_of(node),
    }


def connection_of(node: Node, peer: Row | None, now: datetime) -> dict[str, Any] | None:
    """Its socket on the relay."""
    if peer is None:
        return None
    figures = peer.figures
    return {
        "process": peer.process,
        "since": datetime.fromtimestamp(peer.since, UTC),
        "address": peer.address,
        "version": peer.version,
        "in_flight": figures.num_in_flight if figures else None,
        "sent_bytes": figures.bytes_in if figures else None,
        "received_bytes": figures.bytes_out if figures else None,
        "num_replaced": figures.num_replaced if figures else 0,
    }


Of = Callable[[Sample], float | None]
CHARTS: tuple[tuple[str, str, tuple[tuple[str, Of], ...]], ...] = (  # what, unit, its lines
    ("A step through it", "ms", (("a step", lambda sample: sample.hop_ms),)),
    ("Round trip to the relay", "ms", (("round trip", lambda sample: sample.rtt_ms),)),
    (
        "Traffic a minute",
        "bytes",
        (("sent", lambda sample: sample.bytes_in), ("received", lambda sample: sample.bytes_out)),
    ),
    ("Sessions", "", (("sessions", lambda sample: sample.sessions),)),
    ("Tokens in its caches", "", (("tokens", lambda sample: sample.cached_tokens),)),
)


def charts_of(samples: Sequence[Sample], end: datetime) -> list[dict[str, Any]]:
    return [_chart(what, unit, [(name, points(samples, of)) for name, of in told], end) for what, unit, told in CHARTS]


def _chart(what: str, unit: str, told: Sequence[tuple[str, list[Point]]], end: datetime) -> dict[str, Any]:
    top = lines.top_of(*(values for _, values in told))
    drawn: list[tuple[str, Line]] = [(name, lines.line(values, end, KEPT, top)) for name, values in told]
    return {"what": what, "unit": unit, "lines": drawn, "is_empty": not any(line.path for _, line in drawn)}


def served_of(node: Node, now: datetime) -> list[dict[str, Any]]:
    """A day a row, the newest first; `percent` of the day on which it did most."""
    since = day_of(now) - timedelta(days=DAYS)
    rows = Contribution.objects.filter(node=node, day__gt=since).order_by("-day", "model_name")
    told = list(rows.values("day", "model_name", "sessions", "tokens", "token_layers"))
    most = max((day["token_layers"] for day in told), default=0) or 1
    return [day | {"percent": 100 * day["token_layers"] // most} for day in told]


def sessions_of(node: Node, now: datetime) -> list[dict[str, Any]]:
    """Those that came to it last. By the keys of their hops, which are made in order: an index has them."""
    hops = SessionHop.objects.filter(node=node).order_by("-pk").select_related("session__model")
    newest: dict[int, SessionHop] = {}
    for hop in hops[: MAX_SESSIONS * LAYERS_IN_A_ROW]:
        newest.setdefault(hop.session_id, hop)
    return [_session(hop, now) for hop in list(newest.values())[:MAX_SESSIONS]]


def _session(hop: SessionHop, now: datetime) -> dict[str, Any]:
    session = hop.session
    return {
        "id": session.completion_id,
        "choice": session.choice,
        "short_id": session.short_id,
        "model": session.model.name,
        "state": session.state_at(now),
        "started": session.started,
        "layers": hop.layers,
        "is_head": hop.position == 0,
        "path": hop.path,
        "tokens": hop.tokens,
        "compute_ms": hop.compute_p50_ms,
        "network_ms": hop.network_p50_ms,
        "error_code": session.error_code if session.state == ChatSession.State.FAILED else "",
    }


def failovers_of(node: Node) -> list[dict[str, Any]]:
    """When sessions last went on without it, and why."""
    rows = Failover.objects.filter(node=node).order_by("-pk").select_related("session", "reported_by")
    return [
        {
            "at": failover.at,
            "id": failover.session.completion_id,
            "choice": failover.session.choice,
            "short_id": failover.session.short_id,
            "kind": failover.get_kind_display(),
            "code": failover.code,
            "cause": failover.cause,
            "reported_by": failover.reported_by.name if failover.reported_by else None,
            "resume_ms": failover.resume_ms,
        }
        for failover in rows[:MAX_FAILOVERS]
    ]


def moves_of(node: Node) -> list[dict[str, Any]]:
    """To other layers: what is proposed or under way, and what was."""
    return [
        {
            "state": move.state,
            "was": layers_in_words(move.from_start, move.from_end),
            "will": layers_in_words(move.to_start, move.to_end),
            "reason": move.reason,
            "outcome": move.outcome,
            "decided_by": move.decided_by,
            "changed": move.changed,
        }
        for move in Move.objects.filter(node=node)[:MAX_MOVES]
    ]


page = Page("node-detail", "Node", context, every_s=2.0)
