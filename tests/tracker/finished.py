"""A session that has ended, with all that its head told of it; and what it looks like when it has lost a node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tracker.models import ChatSession, Failover, LanguageModel, Node, SessionHop

Connect = Callable[[Node], None]


def make_finished(make_node: MakeNode, connect: Connect) -> ChatSession:
    """Over node-a and node-b, in three seconds."""
    started = timezone.now() - timedelta(seconds=5)
    made = ChatSession.objects.create(
        session_id="0123456789abcdef" * 2,
        completion_id="chatcmpl-abc",
        model=LanguageModel.objects.get(),
        seed=1,
        state=ChatSession.State.DONE,
        started=started,
        ended=started + timedelta(seconds=3),
        completion_tokens=21,
        prompt_tokens=9,
        ttft_ms=1000.0,
        finish_reason="length",
    )
    for position, (name, start, end, path) in enumerate([("node-a", 0, 6, "local"), ("node-b", 6, 12, "relay")]):
        node = make_node(name, start, end)
        connect(node)
        SessionHop.objects.create(
            session=made,
            position=position,
            node=node,
            node_name=name,
            start_layer=start,
            end_layer=end,
            path=path,
            steps=21,
            ms_total=420.0,
            compute_ms=210.0,
            queue_ms=1.0,
        )
    return made


def make_survivor(session: ChatSession) -> None:
    """The session, once it has gone on with node-c instead of its last node."""
    lost = Node.objects.get(name="node-b")
    ChatSession.objects.update(epoch=1)
    for position, name, start, end in [(0, "node-a", 0, 6), (1, "node-c", 6, 12)]:
        hop = {"position": position, "node_name": name, "start_layer": start, "end_layer": end}
        SessionHop.objects.create(session=session, epoch=1, **hop)
    Failover.objects.create(
        session=session,
        epoch=1,
        kind=Failover.Kind.HOP,
        node=lost,
        node_name="node-b",
        start_layer=6,
        end_layer=12,
        reported_by=Node.objects.get(name="node-a"),
        code="node_failed",
        cause="<b>no path works",
        position=17,
        at=session.started + timedelta(seconds=2),
        resume_ms=812.4,
        kept=Failover.Kept.ACTIVATIONS,
        replayed_tokens=16,
        replay_compute_ms=31.6,
    )
