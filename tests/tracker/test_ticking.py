from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session as Login
from django.core.management import call_command
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tracker import audit, ticking
from tracker.models import AuditEntry, ChatSession, Failover, LanguageModel, Lease, SessionHop
from tracker.models.sessions import LOST_AFTER
from tracker.ticking import GRACE, LEASE, PERIOD_S, Watch

NOW = timezone.now()
PERIOD = timedelta(seconds=PERIOD_S)
pytestmark = pytest.mark.django_db
Begin = Callable[..., ChatSession]


@pytest.fixture
def begin(model: LanguageModel) -> Begin:
    def make(**fields: object) -> ChatSession:
        number = ChatSession.objects.count()
        row = {"session_id": f"{number:032x}", "completion_id": f"chatcmpl-{number}", "model": model, "seed": 1}
        return ChatSession.objects.create(**(row | {"started": NOW, "last_news": NOW} | fields))

    return make


def states() -> list[str]:
    return list(ChatSession.objects.order_by("pk").values_list("state", flat=True))


def test_a_session_without_news_is_ended_and_says_why(begin: Begin) -> None:
    begin(last_news=NOW - LOST_AFTER)
    begin(last_news=NOW - LOST_AFTER + timedelta(seconds=1))
    begin(last_news=NOW - LOST_AFTER, state=ChatSession.State.DONE)
    assert ticking.end_lost(NOW) == 1
    assert states() == ["failed", "running", "done"]
    lost = ChatSession.objects.earliest("pk")
    assert (lost.error_code, lost.ended) == ("lost", NOW)
    assert "no news for 30 s" in lost.error_message
    assert ticking.end_lost(NOW) == 0


def test_old_records_go_with_all_that_belongs_to_them(begin: Begin, make_node: MakeNode, settings: Settings) -> None:
    settings.SESSION_KEEP_DAYS = 2
    old = begin(started=NOW - timedelta(days=2, seconds=1), state=ChatSession.State.DONE)
    kept = begin(started=NOW - timedelta(days=2), state=ChatSession.State.DONE)
    layers = {"node": make_node("a"), "node_name": "a", "start_layer": 0, "end_layer": 12}
    for session in (old, kept):
        SessionHop.objects.create(session=session, position=0, **layers)
        Failover.objects.create(session=session, epoch=1, kind="hop", code="node_failed", at=NOW, **layers)
    assert ticking.prune(NOW) == 1
    assert list(ChatSession.objects.all()) == [kept]
    assert (SessionHop.objects.count(), Failover.objects.count()) == (1, 1)
    assert ticking.prune(NOW) == 0


def test_of_many_old_records_some_go_at_a_time(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticking, "MAX_AT_ONCE", 2)
    for _ in range(3):
        begin(started=NOW - timedelta(days=400), state=ChatSession.State.FAILED)
    assert [ticking.prune(NOW) for _ in range(3)] == [2, 1, 0]


def test_what_operators_did_is_forgotten_after_its_time(
    make_node: MakeNode, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AUDIT_KEEP_DAYS = 2
    monkeypatch.setattr(ticking, "MAX_AT_ONCE", 2)
    node = make_node("a")
    for _ in range(4):
        audit.record(None, "pause", node)
    kept = AuditEntry.objects.latest("pk")
    AuditEntry.objects.exclude(pk=kept.pk).update(at=NOW - timedelta(days=2, seconds=1))
    assert [ticking.forget_actions(NOW) for _ in range(3)] == [2, 1, 0]
    assert list(AuditEntry.objects.all()) == [kept]


def test_expired_logins_are_forgotten() -> None:
    for number, expires in enumerate((NOW - timedelta(seconds=1), NOW + timedelta(seconds=1))):
        Login.objects.create(session_key=str(number), session_data="", expire_date=expires)
    assert [ticking.forget_logins(NOW) for _ in range(2)] == [1, 0]


def test_one_process_at_a_time_does_it_and_one_that_dies_hands_it_on() -> None:
    one, other = Watch("one"), Watch("other")
    assert (one.pass_by(NOW), other.pass_by(NOW)) == (True, False)
    assert (other.pass_by(NOW + PERIOD), one.pass_by(NOW + PERIOD)) == (False, True)
    assert not other.pass_by(NOW + PERIOD + LEASE - timedelta(seconds=1))
    assert other.pass_by(NOW + PERIOD + LEASE)
    assert not one.pass_by(NOW + PERIOD + LEASE), "it was gone for too long"
    assert Lease.objects.count() == 1


def test_who_begins_to_watch_leaves_others_time_for_their_news(begin: Begin) -> None:
    """After the database was away every session looks lost."""
    begin(last_news=NOW - timedelta(minutes=2))
    watch = Watch("one")
    for number in range(3):
        watch.pass_by(NOW + number * PERIOD)
    assert states() == ["running"]
    watch.pass_by(NOW + GRACE)
    assert states() == ["failed"]
    begin(last_news=NOW - timedelta(minutes=2))
    back = NOW + GRACE + LEASE + timedelta(seconds=1)
    watch.pass_by(back)
    assert states() == ["failed", "running"]
    for number in range(1, 4):
        watch.pass_by(back + number * PERIOD)
    assert states() == ["failed", "failed"]


def test_the_command_does_one_pass_whoever_holds_the_lease_and_says_what_it_did(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(last_news=timezone.now() - LOST_AFTER)
    Lease.take("tick", "another", timezone.now(), LEASE)
    call_command("tick", "--once")
    assert states() == ["failed"]
    assert (
        capsys.readouterr().out
        == "Ended 1 lost session, deleted 0 old sessions, 0 expired logins and 0 old rows of the audit log.\n"
    )


@pytest.mark.parametrize(("num_lost", "words"), [(1, "1 session was lost with"), (2, "2 sessions were lost with")])
def test_the_log_names_sessions_that_were_lost(
    begin: Begin, caplog: pytest.LogCaptureFixture, num_lost: int, words: str
) -> None:
    for _ in range(num_lost):
        begin(last_news=NOW - LOST_AFTER)
    ticking.end_lost(NOW)
    assert words in caplog.text
