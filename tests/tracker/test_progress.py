from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from tests.tracker.conftest import MakeNode
from tests.tracker.sessions import begin_chat
from tracker import endings, news, progress
from tracker.chats import Chat
from tracker.endings import Outcome
from tracker.events import Delta
from tracker.hopreports import FailoverReport, HopReport, Report
from tracker.models import ChatSession, Failover, Node, SessionHop, SessionSteps

STEP = {"step": 3, "epoch": 0, "position": 9, "tokens": 1, "at_ms": 12.5, "hops": [[1.5, 0, 0.25], [2, 3, 0]]}
pytestmark = pytest.mark.django_db


@pytest.fixture
def nodes(make_node: MakeNode, connect: Callable[[Node], None]) -> list[Node]:
    made = [make_node("head", 0, 6), make_node("tail", 6, 12)]
    for node in made:
        connect(node)
    return made


def told(nodes: list[Node], steps: int = 3, **fields: Any) -> tuple[HopReport, ...]:
    percentiles = {"compute_p50_ms": 1.5, "network_p95_ms": 7.0}
    return tuple(
        HopReport(node.peer_id, start, end, path, steps, 30.0, 20.0, 1.0, tokens=9, percentiles=percentiles, **fields)
        for node, start, end, path in zip(nodes, (0, 6), (6, 12), ("local", "tunnel"), strict=True)
    )


def goes_on(
    chat: Chat,
    nodes: list[Node],
    number: int = 0,
    failovers: tuple[FailoverReport, ...] = (),
    left: tuple[HopReport, ...] = (),
) -> None:
    """Its head says one more token, and how it goes."""
    news.of(chat.session_pk).answer = chat.answer
    steps = (STEP | {"step": number},)
    progress = Report(None, None, told(nodes, number), failovers, left, steps)
    chat.answer.add(Delta("a", ids=(number,), prompt_ids=(1, 2), progress=progress))


def test_who_looks_on_sees_a_running_sessions_hops_and_last_steps(nodes: list[Node]) -> None:
    chat = begin_chat()
    goes_on(chat, nodes, 3)
    news.give(timezone.now())
    head, tail = SessionHop.objects.all()
    assert (head.path, tail.path, tail.steps, tail.ms_total) == ("local", "tunnel", 3, 30.0)
    assert (tail.compute_p50_ms, tail.network_p95_ms, tail.queue_p50_ms) == (1.5, 7.0, None)
    assert (tail.node, tail.node_name, tail.start_layer) == (nodes[1], "tail", 6)
    assert tail.tokens is None, "counted once it has ended"
    assert SessionSteps.objects.get().steps == [STEP]
    goes_on(chat, nodes, 4)
    news.give(timezone.now())
    assert [hop.steps for hop in SessionHop.objects.all()] == [4, 4]
    assert SessionSteps.objects.get().steps == [STEP | {"step": 4}]


def test_many_sessions_take_as_many_statements_as_one(
    nodes: list[Node], django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(5):
        goes_on(begin_chat(), nodes, number)
    with django_assert_num_queries(8):  # two are the savepoint's
        news.give(timezone.now())
    assert SessionSteps.objects.count() == 5


def test_of_too_many_at_once_each_has_its_turn_and_all_tell_their_tokens(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_AT_ONCE", 2)
    chats, now, written = [begin_chat() for _ in range(5)], timezone.now(), []
    for number in range(4):
        for chat in chats:
            goes_on(chat, nodes, number)
        news.give(now + timedelta(seconds=number))
        written.append(SessionSteps.objects.count())
        assert {session.completion_tokens for session in ChatSession.objects.all()} == {number + 1}
    assert written == [2, 4, 5, 5]


def test_figures_of_a_route_that_is_left_arent_those_of_the_next(nodes: list[Node]) -> None:
    chat = begin_chat()
    goes_on(chat, nodes)
    ChatSession.objects.update(epoch=1)
    for hop in list(SessionHop.objects.all()):
        hop.pk, hop.epoch, hop.start_layer = None, 1, hop.start_layer + 1
        hop.save()
    news.give(timezone.now())
    assert [hop.steps for hop in SessionHop.objects.all()] == [None] * 4


def test_what_a_running_session_went_on_without_is_told_too(
    nodes: list[Node], make_node: MakeNode, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    chat = begin_chat()
    spare = make_node("spare", 6, 12)
    ChatSession.objects.update(epoch=1)
    for position, (node, start, end) in enumerate([(nodes[0], 0, 6), (spare, 6, 12)]):
        hop = {"position": position, "node": node, "node_name": node.name, "start_layer": start, "end_layer": end}
        SessionHop.objects.create(session_id=chat.session_pk, epoch=1, **hop)
    lost = {"kind": "hop", "node_name": "tail", "start_layer": 6, "end_layer": 12, "code": "x", "at": timezone.now()}
    Failover.objects.create(session_id=chat.session_pk, epoch=1, **lost)
    [_, left] = told(nodes, 2, epoch=0)
    mended = FailoverReport(1, "tokens", 9, 40.5, 3.0)
    goes_on(chat, [nodes[0], spare], 5, (mended,), (left,))
    news.give(timezone.now())
    assert [(hop.epoch, hop.node_name, hop.steps) for hop in SessionHop.objects.all()] == [
        (0, "head", None),
        (0, "tail", 2),
        (1, "head", 5),
        (1, "spare", 5),
    ]
    failover = Failover.objects.get()
    assert (failover.resume_ms, failover.kept, failover.replayed_tokens) == (40.5, "tokens", 9)
    goes_on(chat, [nodes[0], spare], 6, (mended,), (left,))
    with django_assert_num_queries(8):  # what is written already isn't written again
        news.give(timezone.now())


def test_how_long_it_took_to_go_on_at_another_head_is_told_too(nodes: list[Node]) -> None:
    chat = begin_chat()
    lost = {"kind": "head", "node_name": "head", "start_layer": 0, "end_layer": 6, "code": "x", "at": timezone.now()}
    Failover.objects.create(session_id=chat.session_pk, epoch=1, **lost)
    goes_on(chat, nodes, 3, (FailoverReport(1, "tokens", 9, None, 3.0),))
    news.of(chat.session_pk).resume_ms[1] = 812.4
    news.give(timezone.now())
    failover = Failover.objects.get()
    assert (failover.resume_ms, failover.kept, failover.replayed_tokens) == (812.4, "tokens", 9)


def test_at_the_end_its_last_words_stand(nodes: list[Node]) -> None:
    chat = begin_chat()
    goes_on(chat, nodes)
    news.give(timezone.now())
    chat.answer.report = Report(2, 2, told(nodes, 8), steps=(STEP | {"step": 8},))
    endings.finish(chat, Outcome(ChatSession.State.DONE), timezone.now())
    assert [(hop.steps, hop.tokens, hop.compute_p50_ms) for hop in SessionHop.objects.all()] == [(8, 4, 1.5)] * 2
    assert SessionSteps.objects.get().steps[0]["step"] == 8


def test_where_a_head_had_no_last_word_what_it_told_before_stands(nodes: list[Node]) -> None:
    chat = begin_chat()
    goes_on(chat, nodes, 3)
    endings.finish(chat, Outcome(ChatSession.State.CANCELLED), timezone.now())
    assert [(hop.steps, hop.tokens) for hop in SessionHop.objects.all()] == [(3, 2), (3, 2)]
    assert SessionSteps.objects.get().steps == [STEP]


def test_a_short_chat_writes_no_steps_that_nobody_told(nodes: list[Node]) -> None:
    endings.finish(begin_chat(), Outcome(ChatSession.State.DONE), timezone.now() + timedelta(seconds=1))
    assert not SessionSteps.objects.exists()
