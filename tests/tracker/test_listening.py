from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from relay import client, wire
from relay.wire import Code
from tracker.listening import Clock, HeadFailed, Loss, listen

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
