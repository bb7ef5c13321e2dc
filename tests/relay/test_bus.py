"""Two ends of the bus on one event loop, over a real Redis that loses what it is told to."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import msgpack
import pytest
import redis

from relay import bus as module
from relay.bus import CHANNEL, Bus, BusLost
from relay.pairs import ACKNOWLEDGED_TICKS, TICK_S
from tests.lab.redis import Redis

MIB = 1024 * 1024
UNACKNOWLEDGED_S = ACKNOWLEDGED_TICKS * TICK_S


class Process:
    """An end of the bus, what it heard and what failed."""

    def __init__(self, url: str, name: str) -> None:
        self.heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self.failures: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.bus = Bus(url, name, lambda *it: self.heard.put_nowait(it), lambda *it: self.failures.put_nowait(it))
        self.opened = asyncio.Event()
        self.running = asyncio.create_task(self.bus.run(self.opened.set))

    async def close(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError, BusLost):
            await self.running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with Redis(tmp_path_factory.mktemp("bus")) as server:
        yield server


@pytest.fixture
async def ends(server: Redis) -> AsyncIterator[tuple[Process, Process]]:
    a, b = Process(server.url, "a"), Process(server.url, "b")
    async with asyncio.timeout(10):
        await a.opened.wait()
        await b.opened.wait()
        yield a, b
        await a.close()
        await b.close()


async def test_items_cross_whole_in_order_both_ways(ends: tuple[Process, Process]) -> None:
    a, b = ends
    items = [b"first", os.urandom(MIB), b"", os.urandom(1200)]
    for item in items:
        assert a.bus.send("b", item)
    assert [await b.heard.get() for _ in items] == [("a", item) for item in items]
    assert b.bus.send("a", b"back")
    assert await a.heard.get() == ("b", b"back")
    assert a.failures.empty()


async def test_more_than_the_window_has_no_room_until_it_is_acknowledged(ends: tuple[Process, Process]) -> None:
    a, b = ends
    for _ in range(4):
        assert a.bus.has_room("b", MIB - 1000)
        a.bus.send("b", bytes(MIB - 1000))
    assert not a.bus.has_room("b", MIB)
    for _ in range(4):
        await b.heard.get()
    while a.bus.pairs["b"].outstanding_bytes:
        await asyncio.sleep(TICK_S)
    assert a.bus.has_room("b", MIB)


async def test_a_process_that_is_not_there_fails_after_a_second(ends: tuple[Process, Process]) -> None:
    a, _ = ends
    started = time.monotonic()
    assert a.bus.send("nobody", b"hello?")
    process, why = await a.failures.get()
    assert process == "nobody"
    assert "acknowledged nothing" in why
    assert UNACKNOWLEDGED_S <= time.monotonic() - started < UNACKNOWLEDGED_S + 1
    assert not a.bus.send("nobody", b"hello?")
    a.bus.drop("nobody")


async def test_a_message_that_is_lost_fails_both_ends_and_both_go_on(
    server: Redis, ends: tuple[Process, Process]
) -> None:
    a, b = ends
    a.bus.send("b", b"1")
    await b.heard.get()
    a.bus.pairs["b"]._last_sent += 1  # as if Redis had dropped one
    a.bus.send("b", b"3")
    assert (await b.failures.get())[0] == "a"
    assert (await a.failures.get())[0] == "b"
    assert b.heard.empty()
    while not a.bus.send("b", b"again"):
        await asyncio.sleep(TICK_S)
    assert await b.heard.get() == ("a", b"again")


async def test_a_subscriber_that_redis_cuts_off_loses_messages_but_nobody_waits_for_them(
    server: Redis, ends: tuple[Process, Process]
) -> None:
    """As when it is over Redis' output limit: the connection ends without a word of what was on its way."""
    a, b = ends
    with redis.Redis.from_url(server.url) as admin:
        admin.client_kill_filter(_type="pubsub")
    a.bus.send("b", b"lost")
    assert (await a.failures.get())[0] == "b"
    for end in (a, b):
        if end.running.done():  # it noticed itself
            with pytest.raises(BusLost):
                await end.running
            end.running = asyncio.create_task(end.bus.run(end.opened.set))
    while not a.bus.send("b", b"found"):
        await asyncio.sleep(TICK_S)
    while await b.heard.get() != ("a", b"found"):
        pass


async def test_what_nobody_of_ours_would_say_is_left_aside(server: Redis, ends: tuple[Process, Process]) -> None:
    a, b = ends
    with redis.Redis.from_url(server.url) as stranger:
        for said in ({}, {"from": "a"}, {"from": "a", "e": "1", "n": 1, "a": 0}, {"from": 7, "e": 1, "n": 1, "a": 0}):
            stranger.publish(f"{CHANNEL}b", msgpack.packb(said))
    a.bus.send("b", b"after")
    assert await b.heard.get() == ("a", b"after")


async def test_a_subscription_that_falls_silent_is_noticed(
    ends: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SILENT_TICKS", 2)
    a, _ = ends
    with pytest.raises(BusLost, match="silent"):
        await a.running
    assert not a.bus.is_up
    assert not a.bus.send("b", b"x")


async def test_it_speaks_to_a_redis_on_a_unix_socket(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("unix")
    with Redis(folder, f"unixsocket {folder}/redis.sock"):
        a = Process(f"unix://{folder}/redis.sock", "a")
        async with asyncio.timeout(5):
            await a.opened.wait()
        await a.close()


async def test_without_redis_it_does_not_open(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Redis(tmp_path_factory.mktemp("away")) as away:
        pass
    a = Process(away.url, "a")
    async with asyncio.timeout(5):
        with pytest.raises(BusLost):
            await a.running
    assert not a.opened.is_set()
