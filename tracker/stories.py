"""Sessions and nodes as the pages and their JSON tell them. Plain values, nothing secret."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from relay import presence
from tracker import epochs
from tracker.hopreports import PERCENTILES
from tracker.models import ChatSession, Failover, LanguageModel, Node, SessionHop
from tracker.words import layers_in_words

MAX_LISTED = 50


def sessions_with_hops() -> QuerySet[ChatSession]:
    sessions = ChatSession.objects.select_related("model", "api_key")
    in_order = sessions.order_by("-started", "completion_id", "choice")  # choices of an answer begin at one time
    return in_order.prefetch_related("hops", "failovers__reported_by")


def whole_story(session: ChatSession, now: datetime) -> dict[str, Any]:
    """With the other choices of its answer, and its last steps."""
    choices = ChatSession.objects.filter(completion_id=session.completion_id).order_by("choice")
    told = [{"choice": one.choice, "session": one.short_id, "state": one.state_at(now)} for one in choices]
    steps = getattr(session, "last_steps", None)
    return session_story(session, now) | {"choices": told, "last_steps": steps.steps if steps else []}


def session_story(session: ChatSession, now: datetime) -> dict[str, Any]:
    routes: dict[int, list[dict[str, Any]]] = {session.epoch: []}
    for hop in session.hops.all():
        routes.setdefault(hop.epoch, []).append(hop_story(session, hop))
    return {
        "id": session.completion_id,
        "choice": session.choice,
        "session": session.short_id,
        "request_id": session.request_id or None,
        "user": session.user or None,
        "metadata": session.metadata,
        "model": session.model.name,
        "state": session.state_at(now),
        "started": session.started,
        "ended": session.ended,
        "duration_s": session.duration_s,
        "finish_reason": session.finish_reason or None,
        "prompt_tokens": session.prompt_tokens,
        "completion_tokens": session.completion_tokens,
        "drafted_tokens": session.drafted_tokens,
        "accepted_tokens": session.accepted_tokens,
        "ttft_ms": session.ttft_ms,
        "tokens_per_s": session.tokens_per_s,
        "error": {"code": session.error_code, "message": session.error_message} if session.error_message else None,
        "hops": routes[session.epoch],
        "earlier_routes": [{"epoch": epoch, "hops": hops} for epoch, hops in routes.items() if epoch < session.epoch],
        "failovers": [failover_story(session, failover, routes) for failover in session.failovers.all()],
    }


def hop_story(session: ChatSession, hop: SessionHop) -> dict[str, Any]:
    hop.session = session  # its tokens are asked for; not by a query for each hop
    return {
        "node": hop.node_name,
        "start_layer": hop.start_layer,
        "end_layer": hop.end_layer,
        "layers": hop.layers,
        "path": hop.path or None,
        "steps": hop.steps,
        "ms_per_token": hop.ms_per_token,
        "ms_total": hop.ms_total,
        "compute_ms": hop.compute_ms,
        "queue_ms": hop.queue_ms,
    } | {name: getattr(hop, name) for name in PERCENTILES}


def failover_story(session: ChatSession, failover: Failover, routes: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """`routes`: the hops of the session by epoch."""
    before, after = routes.get(failover.epoch - 1, []), routes.get(failover.epoch, [])
    had = {(hop["node"], hop["layers"]) for hop in before}
    return {
        "epoch": failover.epoch,
        "kind": failover.kind,
        "node": failover.node_name,
        "start_layer": failover.start_layer,
        "end_layer": failover.end_layer,
        "layers": layers_in_words(failover.start_layer, failover.end_layer),
        "code": failover.code,
        "cause": failover.cause,
        "reported_by": failover.reported_by.name if failover.reported_by else None,
        "instead": [hop["node"] for hop in after if (hop["node"], hop["layers"]) not in had],
        "at": failover.at,
        "after_s": max(0.0, (failover.at - session.started).total_seconds()),
        "position": failover.position,
        "answer_position": _within_answer(session, failover),
        "resume_ms": failover.resume_ms,
        "kept": failover.kept or None,
        "replayed_tokens": failover.replayed_tokens,
        "replay_compute_ms": failover.replay_compute_ms,
    }


def _within_answer(session: ChatSession, failover: Failover) -> int | None:
    """Tokens of the answer until then, where it is known how many are the prompt's."""
    if failover.position is None or session.prompt_tokens is None:
        return None
    return max(0, failover.position - session.prompt_tokens)


def recent_sessions(now: datetime) -> list[dict[str, Any]]:
    return [session_story(session, now) for session in sessions_with_hops()[:MAX_LISTED]]


def model_stories(now: datetime) -> list[dict[str, Any]]:
    """Each model with what keeps it from answering, and its nodes with their standing."""
    present = presence.present()
    return [
        {
            "name": model.name,
            "problem": epochs.route_problem(model, now),
            "nodes": [node_story(node, now, present) for node in model.nodes.select_related("shard")],
        }
        for model in LanguageModel.objects.all()
    ]


def node_story(node: Node, now: datetime, present: set[str]) -> dict[str, Any]:
    standing = node.standing(now, is_present=node.peer_id in present)
    shard = getattr(node, "shard", None)
    done_bytes, total_bytes = node.progress or (None, None)
    return {
        "name": node.name,
        "layers": str(shard or ""),
        "version": node.version or None,
        "weights": node.weights or None,
        "ms_per_layer": node.ms_per_layer,
        "sessions": node.sessions,
        "cached_tokens": node.cached_tokens,
        "reserved_tokens": node.reserved_tokens,
        "max_cached_tokens": node.max_cached_tokens,
        "is_online": standing.is_online,
        "reason": standing.reason,
        "state": node.state or None,
        "done_bytes": done_bytes,
        "total_bytes": total_bytes,
    }
