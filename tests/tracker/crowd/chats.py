"""The sessions of a crowd, the newest first: in every 100 some of each state, some that went on without a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any

from tests.tracker.crowd import copies
from tracker.models import ApiKey, ChatSession, Failover, LanguageModel, Node, SessionHop, SessionSteps

NUM_RUNNING = 20  # of the newest; whatever else there is has ended
NUM_COPIED = 1000  # of those that have ended; whatever there is beyond are copies of these, further back
NUM_WITH_STEPS = 100  # of the newest
NUM_STEPS = 32
EACH_S = 8  # one begins so many seconds after another
Route = list[Node]


def make(nodes: Sequence[Node], num_sessions: int, spice: str, now: datetime, random: Random) -> None:
    routes, keys = [*_routes(nodes)], list(ApiKey.objects.all())
    num_made = min(num_sessions, NUM_RUNNING + NUM_COPIED)
    begun = [
        (ChatSession(**_session(number, route, spice, now, random)), route)
        for number in range(num_made)
        for route in [routes[number % len(routes)]]
    ]
    for number, (session, _) in enumerate(begun):
        session.api_key = keys[number % len(keys)] if number % 5 else None
    ChatSession.objects.bulk_create([session for session, _ in begun], batch_size=1000)
    hops = (hop for session, route in begun for hop in _hops(session, route, random))
    SessionHop.objects.bulk_create(hops, batch_size=1000)
    broken = [(session, route) for session, route in begun if session.epoch]
    Failover.objects.bulk_create([_failover(session, route, spice) for session, route in broken], batch_size=1000)
    SessionSteps.objects.bulk_create(
        [SessionSteps(session=session, steps=_steps(len(route), random)) for session, route in begun[:NUM_WITH_STEPS]]
    )
    _copy([session for session, _ in begun[NUM_RUNNING:]], num_sessions - num_made)


def _copy(ended: Sequence[ChatSession], num_more: int) -> None:
    """So many more, each time the ones before over again."""
    for number, start in enumerate(range(0, num_more, NUM_COPIED), 1):
        last = ended[min(NUM_COPIED, num_more - start) - 1]
        copies.copy(ended[0].pk, last.pk, number, number * timedelta(seconds=EACH_S * NUM_COPIED))


def _routes(nodes: Sequence[Node]) -> Iterator[Route]:
    """Nodes one after another that hold a model's layers; of a model with a gap, those that are there."""
    for model in LanguageModel.objects.order_by("pk"):
        held: dict[int, list[Node]] = {}
        for node in nodes:
            if node.model_id == model.pk:
                held.setdefault(node.shard.start_layer, []).append(node)
        parts = [held[start] for start in sorted(held)]
        yield from (list(route) for route in zip(*parts, strict=False))


def _session(number: int, route: Route, spice: str, now: datetime, random: Random) -> dict[str, Any]:
    started = now - timedelta(seconds=EACH_S * number + 3)
    ended = started + timedelta(seconds=random.uniform(0.5, 20))
    tokens = random.randint(10, 400)
    row = {
        "session_id": f"{number:032x}"[::-1],
        "completion_id": f"chatcmpl-{number}",
        "request_id": f"req_{number}",
        "model": route[0].model,
        "user": f"ann{spice}",
        "metadata": {f"for{spice}": f"nothing{spice}"},
        "state": ChatSession.State.DONE,
        "is_streamed": number % 2 == 0,
        "seed": number,
        "max_tokens": 1024,
        "epoch": 1 if number % 20 == 7 else 0,
        "started": started,
        "deadline": started + timedelta(seconds=300),
        "last_news": ended,
        "ended": ended,
        "finish_reason": "stop",
        "prompt_tokens": 20,
        "completion_tokens": tokens,
        "ttft_ms": random.uniform(80, 900),
    }
    return row | _ending(number, spice, now)


def _ending(number: int, spice: str, now: datetime) -> dict[str, Any]:
    if number == 1:  # the process that ran it died
        running = ChatSession.State.RUNNING
        return {"state": running, "last_news": now - timedelta(hours=1), "ended": None, "finish_reason": ""}
    if number < NUM_RUNNING:
        running = ChatSession.State.RUNNING
        return {"state": running, "last_news": now + timedelta(hours=1), "ended": None, "finish_reason": ""}
    if number % 20 == 3:
        error = {"error_code": "node_failed", "error_message": f"node b failed{spice}"}
        return {"state": ChatSession.State.FAILED, "finish_reason": "", **error}
    if number % 20 == 4:
        return {"state": ChatSession.State.CANCELLED, "finish_reason": "", "cancelled_by": f"ann{spice}"}
    return {}


def _hops(session: ChatSession, route: Route, random: Random) -> Iterator[SessionHop]:
    paths = (SessionHop.Path.LOCAL, SessionHop.Path.TUNNEL, SessionHop.Path.DIRECT, SessionHop.Path.RELAY)
    for epoch in range(session.epoch + 1):
        for position, node in enumerate(route):
            compute_ms, network_ms = random.uniform(2, 9), random.uniform(1, 40) if position else 0.0
            yield SessionHop(
                session=session,
                epoch=epoch,
                position=position,
                node=node,
                node_name=node.name,
                start_layer=node.shard.start_layer,
                end_layer=node.shard.end_layer,
                path=paths[position % len(paths)],
                steps=session.completion_tokens,
                tokens=20 + (session.completion_tokens or 0),
                ms_total=(compute_ms + network_ms) * (session.completion_tokens or 0),
                compute_ms=compute_ms * (session.completion_tokens or 0),
                queue_ms=0.5,
                compute_p50_ms=compute_ms,
                compute_p95_ms=compute_ms * 2,
                network_p50_ms=network_ms,
                network_p95_ms=network_ms * 3,
                queue_p50_ms=0.1,
                queue_p95_ms=0.8,
            )


def _failover(session: ChatSession, route: Route, spice: str) -> Failover:
    lost = route[-1]
    return Failover(
        session=session,
        epoch=1,
        kind=Failover.Kind.HOP if len(route) > 1 else Failover.Kind.HEAD,
        node=lost,
        node_name=lost.name,
        start_layer=lost.shard.start_layer,
        end_layer=lost.shard.end_layer,
        reported_by=route[0] if len(route) > 1 else None,
        code="node_failed",
        cause=f"no path works{spice}",
        position=25,
        at=session.started + timedelta(seconds=1),
        resume_ms=640.0,
        kept=Failover.Kept.ACTIVATIONS,
        replayed_tokens=24,
        replay_compute_ms=31.0,
    )


def _steps(num_hops: int, random: Random) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "position": 20 + step,
            "tokens": 1,
            "at_ms": 500 + 60 * step,
            "hops": [[random.uniform(2, 9), random.uniform(1, 40), 0.1] for _ in range(num_hops)],
        }
        for step in range(NUM_STEPS)
    ]
