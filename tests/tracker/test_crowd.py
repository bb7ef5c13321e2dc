"""The crowd that pages are tried with is one that they could meet."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from relay import presence
from tests.tracker.crowd import crowd
from tracker import epochs
from tracker.models import ChatSession, Failover, LanguageModel, Node

pytestmark = pytest.mark.django_db


def test_it_has_nodes_and_sessions_of_each_kind() -> None:
    made, now = crowd(40, 200, num_samples=2), timezone.now()
    assert (Node.objects.count(), ChatSession.objects.count()) == (40, 200)
    with made.connected():
        standings = {node.standing(now, is_present=node.peer_id in presence.present()).reason for node in made.nodes}
        problems = {model.name: epochs.route_problem(model, now) for model in LanguageModel.objects.all()}
    assert len(standings) > 8
    assert (problems["large"], problems["middle"]) == (None, None)
    assert "layers 8–11 have no node online" in str(problems["gap"])
    assert {session.state_at(now) for session in made.sessions} == {"running", "done", "failed", "cancelled", "lost"}


def test_of_many_sessions_the_older_ones_are_as_whole_as_the_newer() -> None:
    crowd(20, 2500, num_samples=1)
    sessions = ChatSession.objects.order_by("-started")
    assert (sessions.count(), sessions.filter(state="running").count()) == (2500, 20)
    assert not sessions.filter(hops=None).exists()
    assert (
        Failover.objects.filter(session__epoch=1).count()
        == Failover.objects.count()
        == sessions.filter(epoch=1).count()
        == 125
    )
    newest, oldest = sessions[20], sessions[2499]
    assert newest.started - oldest.started > timedelta(hours=5)
    assert oldest.ended is not None
    assert oldest.ended > oldest.started


def test_what_somebody_outside_wrote_is_spiced() -> None:
    made = crowd(20, 100, num_samples=1, spice="<i>")
    assert all("<i>" in node.name for node in made.nodes)
    assert all("<i>" in session.user for session in made.sessions)
