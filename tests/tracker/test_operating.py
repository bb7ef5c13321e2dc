"""What operators do with nodes and sessions: what is said of those it was done to, and of those it wasn't."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tracker import operating
from tracker.models import AuditEntry, ChatSession, LanguageModel, Node
from tracker.operating import ACTIONS, Done

pytestmark = pytest.mark.django_db


def test_many_names_are_cut_short() -> None:
    done = Done("Paused", tuple(f"n{number}" for number in range(30)), "So it is.")
    assert str(done).startswith("Paused: n0, n1, ")
    assert str(done).endswith("n19 and 10 more. So it is.")
    assert str(Done("Paused", (), "So it is.", ("Node a is paused already.",))) == ""


@pytest.mark.parametrize("name", ACTIONS)
def test_what_needs_no_doing_is_refused_with_the_reason_and_not_written_down(name: str, make_node: MakeNode) -> None:
    """Each action done twice: the second time there is nothing left to do."""
    make_node("node-a", status=Node.Status.PENDING, duty=Node.Duty.PAUSED if name == "resume" else Node.Duty.WORKS)
    Node.objects.update(breaker_openings=1, banned_until=timezone.now() + timedelta(hours=1))
    first, second = (ACTIONS[name](None, Node.objects.all(), "why not") for _ in range(2))
    assert (first.names, first.refused) == (("node-a",), ())
    assert second.names == ()
    assert second.refused[0].startswith("Node node-a ")
    assert AuditEntry.objects.get().reason == "why not"


def test_a_revoked_node_does_not_come_back_by_an_approval(make_node: MakeNode) -> None:
    make_node("node-a", status=Node.Status.REVOKED)
    done = operating.approve(None, Node.objects.all())
    assert done.refused == ("Node node-a is revoked for good: with a join token it comes as a new one.",)
    assert Node.objects.get().status == Node.Status.REVOKED


def test_sessions_that_run_are_cancelled_and_the_others_counted(model: LanguageModel) -> None:
    now = timezone.now()
    for number, state in enumerate(("running", "running", "done", "failed")):
        row = {"session_id": f"{number}" * 32, "completion_id": f"c{number}", "model": model, "seed": 1}
        ChatSession.objects.create(**row, state=state, started=now, last_news=now)
    done = operating.cancel(None, ChatSession.objects.all(), "too loud")
    assert set(done.names) == {"00000000", "11111111"}
    assert done.refused == ("2 sessions had ended, or were about to, already.",)
    assert set(AuditEntry.objects.values_list("action", "target", "reason")) == {
        ("cancel", "00000000", "too loud"),
        ("cancel", "11111111", "too loud"),
    }
    assert ChatSession.objects.filter(cancelled_by="command line").count() == 2
