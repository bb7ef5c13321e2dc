from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from tests.tracker.conftest import MakeNode
from tracker import answers, chats, endings, news
from tracker.chats import Chat
from tracker.endings import Outcome
from tracker.events import Delta
from tracker.models import ChatSession, Node
from tracker.models.sessions import LOST_AFTER
from tracker.openai import read_chat

pytestmark = pytest.mark.django_db
LATER = timedelta(seconds=40)


@pytest.fixture(autouse=True)
def nothing_runs_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "_running", {})


@pytest.fixture
def chat(make_node: MakeNode, connect: Callable[[Node], None]) -> Chat:
    connect(make_node("only"))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    [chat] = chats.begin(read_chat(json.dumps(body).encode()), answers.CHAT, None, timezone.now())
    return chat


def states(now: datetime) -> list[str]:
    return [session.state_at(now) for session in ChatSession.objects.all()]


def test_a_long_chat_isnt_lost_while_its_process_lives(chat: Chat) -> None:
    now = timezone.now() + LATER
    assert states(now) == ["lost"]
    assert news.give(now) == 1
    assert states(now) == ["running"]
    assert states(now + LOST_AFTER) == ["lost"]


def test_all_sessions_of_a_process_get_their_news_in_few_queries(
    chat: Chat, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    session = ChatSession.objects.get()
    for number in range(3):
        session.pk, session.session_id, session.completion_id = None, f"{number:032x}", f"chatcmpl-{number}"
        session.save()
        news.begin(session.pk)
    with django_assert_num_queries(4):  # two are the savepoint's
        assert news.give(timezone.now()) == 4


def test_where_nothing_runs_the_database_is_left_alone(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0):
        assert news.give(timezone.now()) == 0


def test_a_chat_that_has_ended_gets_no_news(chat: Chat) -> None:
    endings.finish(chat, Outcome(ChatSession.State.DONE), timezone.now())
    ended_with = ChatSession.objects.get().last_news
    assert news.give(timezone.now() + LATER) == 0
    assert ChatSession.objects.get().last_news == ended_with


def test_a_session_that_others_have_given_up_isnt_revived(chat: Chat) -> None:
    ChatSession.objects.update(state=ChatSession.State.FAILED)
    assert news.give(timezone.now() + LATER) == 0


def test_a_session_long_past_its_deadline_gets_no_news(chat: Chat) -> None:
    assert news.give(ChatSession.objects.get().deadline + news.GRACE) == 0


def test_who_wants_a_session_to_end_is_heard_with_its_news(chat: Chat) -> None:
    running = news.of(chat.session_pk)
    news.give(timezone.now())
    assert not running.is_cancelled
    ChatSession.objects.update(cancelled_by="ann")
    news.give(timezone.now())
    assert (running.is_cancelled, running.cancelled_by) == (True, "ann")


def test_what_is_known_by_then_is_written_once(chat: Chat, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    running = news.of(chat.session_pk)
    running.answer, running.ttft_ms = chat.answer, 40.0
    news.give(timezone.now())
    assert ChatSession.objects.get().completion_tokens is None, "its head has said nothing yet"
    chat.answer.add(Delta("Hel", ids=(11, 12), prompt_ids=(1, 2, 3)))
    now = timezone.now() + timedelta(seconds=2)
    news.give(now)
    session = ChatSession.objects.get()
    assert (session.prompt_tokens, session.completion_tokens, session.ttft_ms) == (3, 2, 40.0)
    assert session.tokens_per_s == pytest.approx(1 / ((now - session.started).total_seconds() - 0.04))
    assert session.last_token == now
    with django_assert_num_queries(4):
        news.give(now + timedelta(seconds=2))
    assert ChatSession.objects.get().last_token == now, "it waits since then"


def test_a_session_that_has_ended_keeps_its_last_figures(chat: Chat) -> None:
    running = news.of(chat.session_pk)
    running.answer = chat.answer
    chat.answer.add(Delta("Hel", ids=(11, 12), prompt_ids=(1, 2, 3)))
    ChatSession.objects.update(state=ChatSession.State.DONE, completion_tokens=9)
    assert news.give(timezone.now()) == 0
    assert ChatSession.objects.get().completion_tokens == 9


def test_of_a_session_that_has_ended_nothing_is_kept(chat: Chat) -> None:
    endings.finish(chat, Outcome(ChatSession.State.DONE), timezone.now())
    news.of(chat.session_pk).ttft_ms = 1.0
    assert news._running == {}
