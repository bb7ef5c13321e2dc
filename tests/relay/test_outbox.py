from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay import outbox
from relay.outbox import Outbox


async def written(box: Outbox) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    await asyncio.wait_for(box.run(send), 5)
    return messages


async def test_it_writes_in_order_and_stops_after_the_close() -> None:
    box = Outbox()
    box.accept()
    assert box.put("one")
    box.end("bye", 4409)
    assert await written(box) == [
        {"type": "websocket.accept"},
        {"type": "websocket.send", "text": "one"},
        {"type": "websocket.send", "text": "bye"},
        {"type": "websocket.close", "code": 4409},
    ]


async def test_it_is_bounded_in_bytes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_UNSENT_BYTES", 10)
    box = Outbox()
    assert box.put("x" * 10)
    assert not box.put("x")
    box.end("", 4429)
    await written(box)
    assert box.put("x" * 10), "what was written has made room"


async def test_a_socket_that_is_gone_ends_the_writing() -> None:
    box = Outbox()
    box.put("one")

    async def send(message: dict[str, Any]) -> None:
        raise ConnectionResetError

    await asyncio.wait_for(box.run(send), 5)
