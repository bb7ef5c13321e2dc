"""An operator ends chats: what their clients hear, what their rows say, whom it doesn't touch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone
from pytest_django import Settings

from tests.tracker.conftest import MakeNode
from tests.tracker.fakes import FakeHead, said, sse
from tests.tracker.sessions import begin_chat, begin_chats, begin_session
from tracker import background, cancelling, news, proxy
from tracker.chats import Chat
from tracker.errors import ApiError
from tracker.models import ChatSession, Node
from tracker.models.sessions import LOST_AFTER

pytestmark = pytest.mark.usefixtures("mesh")
State = ChatSession.State


@pytest.fixture
def mesh(make_node: MakeNode, connect: Callable[[Node], None]) -> None:
    connect(make_node("only"))


def cancel() -> list[str]:
    return cancelling.cancel(ChatSession.objects.all(), "ann")


def goes_on() -> tuple[FakeHead, asyncio.Event]:
    """A head that says something, and more when it is told to, without end."""
    more = asyncio.Event()
    return FakeHead(sse(said("Hel", [11], prompt_ids=[1, 2])), more, *[sse(said("lo", [12]))] * 50), more


@async_to_sync
async def cut_off(begun: list[Chat], more: asyncio.Event) -> list[Any]:
    """What a streaming client hears that an operator cuts off."""
    events = proxy.proxy_chats(begun)
    await anext(events)
    parts = []
    async for part in proxy.streamed(begun[0].answer.completion, events):
        parts.append(part)
        if len(parts) == 1:
            await background.in_thread(cancel)
            await background.in_thread(news.give, timezone.now())
            more.set()
    while background.running:
        await asyncio.wait(background.running)
    text = b"".join(parts).decode().removesuffix("\n\n")
    return [json.loads(one[6:]) if one.startswith("data: {") else one for one in text.split("\n\n")]


@pytest.mark.django_db(transaction=True)
def test_its_client_is_told_and_its_head_stops() -> None:
    head, more = goes_on()
    chat = replace(begin_chat(stream=True), call=head)
    *texts, error, end = cut_off([chat], more)
    assert len(texts) == 1, "what came after was no longer passed on"
    assert error["error"]["message"] == "An operator of this site ended this chat."
    assert (error["error"]["code"], end) == ("cancelled", "data: [DONE]")
    assert head.is_closed
    session = ChatSession.objects.get()
    assert (session.state, session.cancelled_by, session.error_code) == (State.CANCELLED, "ann", "")
    assert session.completion_tokens == 1


@pytest.mark.django_db(transaction=True)
def test_the_other_choices_of_its_answer_end_with_it() -> None:
    (head, more), (other, _) = goes_on(), goes_on()
    begun = [replace(chat, call=call) for chat, call in zip(begin_chats(n=2), (head, other), strict=True)]
    ChatSession.objects.filter(choice=1).update(deadline=timezone.now() - 2 * news.GRACE)  # only one gets its news
    *_, error, _ = cut_off(begun, more)
    assert error["error"]["code"] == "cancelled"
    assert [session.state for session in ChatSession.objects.all()] == [State.CANCELLED] * 2


def test_an_unstreamed_answer_is_refused_with_a_status() -> None:
    head, more = goes_on()
    more.set()
    chat = replace(begin_chat(), call=head)
    cancel()
    news.give(timezone.now())
    with pytest.raises(ApiError) as refused:
        async_to_sync(proxy.whole)(chat.answer.completion, proxy.proxy_chats([chat]))
    assert (refused.value.status, refused.value.code) == (403, "cancelled")
    assert ChatSession.objects.get().state == State.CANCELLED


def test_a_chat_that_waits_for_another_head_waits_no_longer(settings: Settings) -> None:
    settings.FAILOVER_WAIT_S = 60
    chat = begin_chat()

    head = FakeHead(sse(said("Hel", [11], prompt_ids=[1, 2])))  # and is gone

    async def read() -> None:
        async for answer, _ in proxy.proxy_chat(replace(chat, call=head)):
            if answer.ids:
                news.of(chat.session_pk).cancelled_by = "ann"

    with pytest.raises(ApiError) as ended:
        async_to_sync(read)()
    assert ended.value.code == "cancelled"


def test_only_those_that_run_are_cancelled_and_each_once() -> None:
    runs, done, lost = begin_session(), begin_session(), begin_session()
    ChatSession.objects.filter(pk=done.pk).update(state=State.DONE)
    ChatSession.objects.filter(pk=lost.pk).update(last_news=timezone.now() - LOST_AFTER - timedelta(seconds=1))
    assert cancel() == [runs.short_id]
    assert cancel() == []
    assert [one.cancelled_by for one in ChatSession.objects.order_by("pk")] == ["ann", "", ""]


def test_only_those_that_were_chosen_are() -> None:
    chosen, other = begin_session(), begin_session()
    assert cancelling.cancel(ChatSession.objects.filter(pk=chosen.pk), "ann") == [chosen.short_id]
    other.refresh_from_db()
    assert other.cancelled_by == ""
