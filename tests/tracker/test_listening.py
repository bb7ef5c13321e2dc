from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator

import pytest

from relay import client, wire
from relay.wire import Code
from tests.tracker.fakes import FakeHead, said, sse
from tracker.errors import ApiError
from tracker.events import Delta, Keepalive
from tracker.listening import LAST_WORDS_S, Clock, HeadFailed, Loss, listen

ASKED = wire.Request("1", "POST", "/v1/chat/completions")


async def loss_by(answer: wire.Answer) -> Loss:
    async def call(request: wire.Request) -> AsyncGenerator[wire.Answer, None]:
        yield answer

    with pytest.raises(HeadFailed) as failed:
        await anext(listen(call, ASKED, Clock(10, 5)))
    return failed.value.loss


async def test_a_head_that_is_busy_refuses() -> None:
    assert await loss_by(wire.error_response("1", Code.BUSY, "this node heads 8 chats")) is Loss.REFUSES


async def test_a_relay_that_cannot_pass_the_question_on_says_nothing_of_the_head() -> None:
    unreachable = wire.error_response("1", Code.BUSY, "Redis can't be reached", {client.IN_PLACE: Code.BUSY.value})
    assert await loss_by(unreachable) is Loss.GONE


async def test_a_head_speaks_of_its_faults_without_its_insides_and_only_in_codes_of_its_own() -> None:
    said = wire.error_response("1", Code.INTERNAL, "torch.OutOfMemoryError: at /home/me/mesh/shard.py: no room")

    async def call(request: wire.Request) -> AsyncGenerator[wire.Answer, None]:
        yield said

    with pytest.raises(HeadFailed) as failed:
        await anext(listen(call, ASKED, Clock(10, 5)))
    assert failed.value.error.message == "at …: no room"

    body = b'{"error": {"code": "invalid_api_key", "message": "who are you?"}}'
    said = wire.Response("1", 400, {}, body)
    with pytest.raises(ApiError) as refused:
        await anext(listen(call, ASKED, Clock(10, 5)))
    assert refused.value.code == Code.BAD_ANSWER


async def test_a_chat_ends_a_moment_before_its_process_does() -> None:
    head, stops_at = FakeHead(sse(said("Hel", [11])), asyncio.Event()), time.monotonic() + LAST_WORDS_S + 0.2
    events = listen(head, ASKED, Clock(10, 5, lambda: stops_at))
    assert isinstance(await anext(events), Keepalive)
    assert isinstance(await anext(events), Delta)
    with pytest.raises(ApiError) as ended:
        await anext(events)
    assert (ended.value.status, ended.value.code) == (503, "draining")
    assert stops_at - LAST_WORDS_S <= time.monotonic() < stops_at
    assert head.is_closed


async def test_a_stop_is_seen_at_the_next_item_though_more_of_them_are_there() -> None:
    head, stops_at = FakeHead(*[sse(said("Hel", [11]))] * 3), [math.inf]
    events = listen(head, ASKED, Clock(10, 5, lambda: stops_at[0]))
    await anext(events)
    await anext(events)
    stops_at[0] = time.monotonic()
    with pytest.raises(ApiError, match="the site is shutting down"):
        await anext(events)
