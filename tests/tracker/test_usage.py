"""What was used with a key, as its sessions' ends leave it in the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.tracker.conftest import MakeNode
from tests.tracker.sessions import begin_chat
from tracker import endings, ticking, usage
from tracker.chats import Chat
from tracker.credentials import Credential
from tracker.endings import Outcome
from tracker.hopreports import Report
from tracker.models import ApiKey, ChatSession, Node, Usage
from tracker.models.sessions import LOST_AFTER

pytestmark = pytest.mark.django_db
NOW = timezone.now()
Begin = Callable[..., Chat]
FAILED = ChatSession.State.FAILED


@pytest.fixture
def begin(make_node: MakeNode, connect: Callable[[Node], None], api_key: Credential) -> Begin:
    connect(make_node("only", lease_until=NOW + timedelta(days=2)))
    return lambda **fields: begin_chat(key=ApiKey.objects.get(), at=NOW, **fields)


def end(chat: Chat, prompt_tokens: int, completion_tokens: int, state: str = ChatSession.State.DONE) -> None:
    chat.answer.report = Report(prompt_tokens, completion_tokens, ())
    endings.finish(chat, Outcome(state), NOW)


def another_choice(chat: Chat, choice: int) -> ChatSession:
    first = ChatSession.objects.get(pk=chat.session_pk)
    fields = {"model": first.model, "api_key": first.api_key, "seed": 1, "started": NOW, "last_news": NOW}
    return ChatSession.objects.create(
        session_id=f"{choice:032x}", completion_id=first.completion_id, choice=choice, **fields
    )


def finish(session: ChatSession, **end: Any) -> None:
    usage.count_end(session, {"ended": NOW} | end)
    ChatSession.objects.filter(pk=session.pk).update(ended=NOW, **end)


def used() -> list[tuple[int, int, int, int]]:
    return list(Usage.objects.values_list("requests", "failed", "prompt_tokens", "completion_tokens"))


def test_each_request_adds_to_its_keys_day_and_model(begin: Begin) -> None:
    end(begin(), 10, 20)
    end(begin(), 1, 2)
    row = Usage.objects.get()
    assert (row.api_key, row.day, row.model_name) == (ApiKey.objects.get(), NOW.date(), "tiny")
    assert used() == [(2, 0, 11, 22)]


def test_without_a_key_there_is_a_row_too(begin: Begin) -> None:
    for _ in range(2):
        end(begin_chat(at=NOW), 1, 2)
    end(begin(), 10, 20)
    assert sorted((row.api_key is None, row.requests, row.prompt_tokens) for row in Usage.objects.all()) == [
        (False, 1, 10),
        (True, 2, 2),
    ]


def test_who_failed_or_left_has_used_what_there_was(begin: Begin) -> None:
    end(begin(), 10, 5, FAILED)
    end(begin(), 10, 3, ChatSession.State.CANCELLED)
    endings.finish(begin(), Outcome(), NOW)
    assert used() == [(3, 2, 20, 8)]


def test_a_session_that_is_lost_is_a_failed_request(begin: Begin) -> None:
    chat = begin()
    late = NOW + LOST_AFTER
    assert [ticking.end_lost(late), ticking.end_lost(late)] == [1, 0]
    assert used() == [(1, 1, 0, 0)]
    end(chat, 10, 20)
    assert used() == [(1, 0, 10, 20)], "its process had only been away"


def test_a_session_that_is_lost_has_used_what_its_process_had_told(begin: Begin) -> None:
    chat = begin()
    ChatSession.objects.update(prompt_tokens=10, completion_tokens=4)
    ticking.end_lost(NOW + LOST_AFTER)
    assert used() == [(1, 1, 10, 4)]
    end(chat, 10, 20)
    assert used() == [(1, 0, 10, 20)]


def test_choices_are_one_request_whose_prompt_counts_once(begin: Begin) -> None:
    chat = begin()
    others = [another_choice(chat, number) for number in (1, 2)]
    finish(others[0], state="done", prompt_tokens=10, completion_tokens=5)
    end(chat, 10, 4)
    finish(others[1], state="done", prompt_tokens=10, completion_tokens=6)
    assert used() == [(1, 0, 10, 15)]


def test_a_request_fails_once_however_many_of_its_choices_do(begin: Begin) -> None:
    chat = begin()
    others = [another_choice(chat, number) for number in (1, 2)]
    finish(others[0], state=FAILED, completion_tokens=1)
    finish(others[1], state=FAILED, completion_tokens=1)
    end(chat, 10, 1, ChatSession.State.CANCELLED)
    assert used() == [(1, 1, 10, 3)]


def test_an_end_that_is_told_twice_counts_once(begin: Begin) -> None:
    chat = begin()
    end(chat, 10, 5, FAILED)
    end(chat, 10, 5, FAILED)
    assert used() == [(1, 1, 10, 5)]


def test_a_key_that_was_deleted_meanwhile_keeps_nobody_from_ending(begin: Begin) -> None:
    chat = begin()
    ApiKey.objects.all().delete()
    end(chat, 10, 5)
    assert [(row.api_key, row.requests) for row in Usage.objects.all()] == [(None, 1)]
    ChatSession.objects.all().delete()
    end(chat, 10, 5)
