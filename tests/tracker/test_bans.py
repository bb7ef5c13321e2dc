"""Nodes that are kept out: for how long, who says so to whom, and how they come back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from relay import presence
from tests.tracker.conftest import MakeNode
from tests.tracker.views.test_nodes import Token, beat, error_of, key_in, register
from tracker import bans, holdings, operating
from tracker.auth import authenticate_peer, review_peers
from tracker.models import AuditEntry, ChatSession, LanguageModel, Node, SessionHop

NOW = datetime(2026, 12, 1, 9, 0, tzinfo=UTC)
DAY = timedelta(days=1)
Connect = Callable[[Node], None]


def test_a_ban_is_told_with_its_end_and_its_reason_until_it_is_over() -> None:
    assert bans.in_words(NOW + DAY, "it lies", NOW) == "banned until 2026-12-02 09:00 UTC: it lies"
    assert bans.in_words(bans.FOR_GOOD, "", NOW) == "banned until the operator lifts it"
    assert bans.in_words(NOW, "it lies", NOW) is None
    assert bans.in_words(None, "it lies", NOW) is None


def test_a_node_asks_again_when_its_ban_is_over_or_a_day_later() -> None:
    assert bans.wait_s(NOW + timedelta(minutes=5), NOW) == 300
    assert bans.wait_s(bans.FOR_GOOD, NOW) == 86_400


@pytest.fixture
def banned(make_node: MakeNode, connect: Connect) -> Node:
    node = make_node("node-a")
    connect(node)
    done = operating.ban(None, Node.objects.all(), "it answers nonsense", DAY)
    assert done.names == ("node-a",)
    node.refresh_from_db()
    return node


@pytest.mark.django_db
def test_who_is_banned_is_offline_and_the_relay_lets_nobody_in_with_its_key(make_node: MakeNode, banned: Node) -> None:
    now = timezone.now()
    assert not Node.objects.online(now, presence.present()).exists()
    standing = banned.standing(now, is_present=True)
    assert (standing.is_online, "banned until" in standing.reason, "nonsense" in standing.reason) == (False, True, True)
    key = Node.objects.get().key_id
    assert key
    refused = review_peers({banned.peer_id: "tiny"})
    assert "it answers nonsense" in refused[banned.peer_id]
    assert review_peers({make_node("node-b").peer_id: "tiny"}) == {}
    entry = AuditEntry.objects.get()
    assert (entry.actor_name, entry.action, entry.reason) == ("command line", "ban", "it answers nonsense")


@pytest.mark.django_db
def test_a_banned_node_is_told_until_when_and_comes_back_after_that(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    operating.ban(None, Node.objects.all(), "it answers nonsense", DAY)
    for answer in (beat(key), register(key)):
        status, code, message = error_of(answer)
        assert (status, code) == (403, "banned")
        assert "it answers nonsense" in message
        assert 80_000 < int(answer["Retry-After"]) <= 86_400
    identity = authenticate_peer(key.text)
    assert identity
    assert not identity.approved
    assert "it answers nonsense" in identity.reason
    Node.objects.update(banned_until=timezone.now())
    assert error_of(beat(key))[1] == "not_registered"
    assert register(key).status_code == 200
    assert beat(key).status_code == 200


@pytest.mark.django_db
def test_a_ban_is_lifted(join_token: Token) -> None:
    key = key_in(register(join_token[1]))
    operating.ban(None, Node.objects.all(), "a mistake", None)
    assert operating.lift_ban(None, Node.objects.all()).names == ("node-1",)
    assert register(key).status_code == 200
    assert operating.lift_ban(None, Node.objects.all()).refused == ("Node node-1 isn't banned.",)


@pytest.mark.django_db
def test_nobody_is_banned_without_a_reason(make_node: MakeNode) -> None:
    make_node("node-a")
    done = operating.ban(None, Node.objects.all(), " ", DAY)
    assert (done.names, len(done.refused)) == ((), 1)
    assert Node.objects.get().banned_until is None


@pytest.mark.django_db
def test_sessions_leave_a_node_that_is_banned_while_there_is_another_way(
    make_node: MakeNode, model: LanguageModel, connect: Connect
) -> None:
    """It may still answer their head where that asks it directly."""
    head, tail, spare = make_node("head", 0, 6), make_node("tail", 6, 12), make_node("spare", 6, 12)
    connect(head)
    row: dict[str, Any] = {"session_id": "ab" * 16, "completion_id": "c", "model": model, "seed": 1}
    session = ChatSession.objects.create(**row, started=timezone.now())
    for position, node in enumerate((head, tail)):
        layers = {"start_layer": node.shard.start_layer, "end_layer": node.shard.end_layer}
        SessionHop.objects.create(session=session, position=position, node=node, node_name=node.name, **layers)
    operating.ban(None, Node.objects.filter(name="tail"), "it answers nonsense", DAY)
    held = {session.session_id: 0}
    assert holdings.moving(head, held, timezone.now()) == []
    connect(spare)
    assert holdings.moving(head, held, timezone.now()) == [session.session_id]
