from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay import outbox, wire
from relay.outbox import Outbox, unsent


class Socket:
    """Where messages are written: it takes them while `opened`."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.opened = asyncio.Event()
        self.opened.set()
        self.changed = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.changed.set()
        await self.opened.wait()

    async def has(self, number: int) -> list[Any]:
        """The first text, bytes or code of each, when there are so many."""
        async with asyncio.timeout(5):
            while len(self.messages) < number:
                self.changed.clear()
                await self.changed.wait()
        return [it.get("text") or it.get("bytes") or it.get("code") or it["type"] for it in self.messages]


async def test_it_writes_in_order_and_nothing_after_the_close() -> None:
    socket = Socket()
    box = Outbox(socket.send)
    box.accept("meshnet.v2")
    assert box.put("one", 3)
    assert box.put(b"two", 3)
    box.end("bye", 4409)
    box.put("late", 4)
    assert await socket.has(5) == ["websocket.accept", "one", b"two", "bye", 4409]
    assert socket.messages[0]["subprotocol"] == "meshnet.v2"
    assert box.num_bytes == unsent.num_bytes == 0
    box.drop()


async def test_it_is_bounded_in_bytes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_UNSENT_BYTES", 10)
    socket = Socket()
    box = Outbox(socket.send)
    assert box.put("x", 10)
    assert not box.put("y", 1)
    await socket.has(1)
    assert box.put("z", 10), "what was written has made room"
    box.drop()
    assert unsent.num_bytes == 0


async def test_all_sockets_together_are_bounded_and_who_has_little_waiting_is_spared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES_PER_PROCESS", 10)
    monkeypatch.setattr(outbox, "SMALL_BYTES", 5)
    one, other = Outbox(Socket().send), Outbox(Socket().send)
    assert one.put("x", 10)
    assert other.put("x", 5)
    assert not other.put("x", 1)
    one.drop()
    other.drop()


async def test_a_pong_goes_first_and_of_several_the_last_says_everything() -> None:
    socket = Socket()
    box = Outbox(socket.send)
    box.put("waits", 5)
    for number in b"123":
        box.put_pong(bytes([number]))
    assert await socket.has(2) == [b"3", "waits"]
    box.drop()


async def test_without_credit_it_writes_pongs_only_until_there_is_some() -> None:
    socket = Socket()
    box, credits = Outbox(socket.send), [True, False, False]
    box.limit(lambda: credits.pop(0))
    box.put("one", 3)
    box.put("two", 3)
    assert await socket.has(1) == ["one"]
    box.put_pong(b"pong")
    assert await socket.has(2) == ["one", b"pong"]
    credits[:] = [True, True]
    box.credited()
    assert await socket.has(3) == ["one", b"pong", "two"]
    box.drop()


async def test_a_reader_that_stalls_is_told_goodbye_without_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FAREWELL_S", 0.05)
    socket = Socket()
    socket.opened.clear()
    box = Outbox(socket.send)
    for text in ("one", "two", "three"):
        box.put(text, 5)
    await socket.has(1)
    box.end("bye", 4504, at_once=True)
    assert await socket.has(3) == ["one", "bye", 4504]
    assert unsent.num_bytes == 0
    box.drop()


async def test_a_goodbye_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FAREWELL_S", 0.05)
    socket = Socket()
    socket.opened.clear()
    box = Outbox(socket.send)
    box.put("one", 3)
    box.put("two", 3)
    await socket.has(1)
    box.end("bye", 4503)
    assert await socket.has(3) == ["one", "bye", 4503]
    box.drop()


async def test_a_socket_that_is_gone_ends_the_writing() -> None:
    tried = asyncio.Event()

    async def send(message: dict[str, Any]) -> None:
        tried.set()
        raise ConnectionResetError

    box = Outbox(send)
    box.put("one", 3)
    box.put("two", 3)
    await asyncio.wait_for(tried.wait(), 5)
    await asyncio.sleep(0)
    assert box.num_bytes == 0
    box.drop()
