"""Overview: which models answer, which layers are held how many times, how much runs; on a new site the first steps.

Whoever may not see the dashboard, on a site that is public, is told models, coverage and counts: no node's name, and
nothing that a node or a person said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Q

from relay import presence
from tracker.candidates import loaded
from tracker.dashboard import coverage
from tracker.dashboard.coverage import Holder
from tracker.dashboard.pages import Ask, Context, Page
from tracker.groups import SEE_DASHBOARD
from tracker.models import ChatSession, LanguageModel, Node

MAX_SESSIONS = 5000  # that are added up
LATELY = timedelta(hours=1)
WAITS = timedelta(seconds=6)  # without a token, such as for a node that was lost: three times the news of it


@dataclass(slots=True)
class Running:
    sessions: int = 0
    tokens_per_s: float = 0.0


def context(ask: Ask) -> Context:
    with_names = SEE_DASHBOARD in ask.may
    nodes = loaded(Node.objects.select_related("shard").defer("model_facts", "wire_versions"), ask.now)
    present, holders = presence.present(), defaultdict(list)
    counted = {node.pk for node in nodes if node.status == Node.Status.APPROVED}
    num_online = 0
    for node in nodes:
        holder = _holder(node, ask.now, is_present=node.peer_id in present)
        num_online += holder.is_online
        if holder.end_layer:
            holders[node.model_id].append(holder)
    running = _running(ask.now)
    models = [
        _model(model, holders[model.pk], counted, running.get(model.pk, Running()), with_names=with_names)
        for model in LanguageModel.objects.all()
    ]
    return {
        "models": models,
        "num_answering": sum(model["answers"] for model in models),
        "num_nodes": len(counted),
        "num_pending": sum(node.status == Node.Status.PENDING for node in nodes),
        "num_online": num_online,
        "num_running": sum(one.sessions for one in running.values()),
        "tokens_per_s": sum(one.tokens_per_s for one in running.values()),
        "lately": _lately(ask.now),
        "sees_names": with_names,
        "public_url": settings.PUBLIC_URL,
        "has_nodes": bool(nodes),
        "has_sessions": ChatSession.objects.exists(),
    }


def _holder(node: Node, now: datetime, *, is_present: bool) -> Holder:
    standing, shard = node.standing(now, is_present=is_present), getattr(node, "shard", None)
    start, end = (shard.start_layer, shard.end_layer) if shard else (0, 0)
    closed = node.closed_to_sessions(now) if standing.is_online else None
    return Holder(node.name, node.pk, start, end, standing.is_online, closed, standing.reason)


def _model(
    model: LanguageModel, holders: Sequence[Holder], counted: Collection[int], running: Running, *, with_names: bool
) -> dict[str, Any]:
    """`counted`: the approved nodes. One that waits or whose key is revoked stands beside the layers that it has."""
    parts = coverage.parts(model.num_layers, holders) if model.num_layers else []
    gaps = coverage.gaps(parts)
    return {
        "pk": model.pk,
        "name": model.name,
        "num_layers": model.num_layers,
        "is_refused": model.is_refused,
        "answers": bool(parts) and not gaps and not model.is_refused,
        "refusal": model.refusal_reason if with_names else "",
        "parts": parts,
        "in_words": "; ".join(part.told() for part in parts),
        "remedies": [coverage.remedy(gap, with_names=with_names) for gap in gaps],
        "num_nodes": sum(holder.pk in counted for holder in holders),
        "num_online": sum(holder.is_online for holder in holders),
        "running": running,
    }


def _running(now: datetime) -> dict[int, Running]:
    """By model. A session's speed is that since its first text, by the last news of it; of one that waits, none."""
    found: dict[int, Running] = defaultdict(Running)
    news = ("model_id", "completion_tokens", "ttft_ms", "started", "last_news", "last_token")
    running = ChatSession.objects.running(now).order_by()
    for model, tokens, ttft_ms, started, last_news, last_token in running.values_list(*news)[:MAX_SESSIONS]:
        found[model].sessions += 1
        is_waiting = last_token is not None and last_news - last_token > WAITS
        if tokens and ttft_ms is not None and not is_waiting:
            decoding_s = (last_news - started).total_seconds() - ttft_ms / 1000
            found[model].tokens_per_s += (tokens - 1) / decoding_s if decoding_s > 0 else 0.0
    return found


def _lately(now: datetime) -> dict[str, int]:
    """Of sessions that began in the last hour: how many, and how many failed."""
    failed = Count("pk", filter=Q(state=ChatSession.State.FAILED))
    return ChatSession.objects.filter(started__gt=now - LATELY).aggregate(begun=Count("pk"), failed=failed)


page = Page("overview", "Overview", context, is_public=True)
