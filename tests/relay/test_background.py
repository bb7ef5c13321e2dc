from __future__ import annotations

import asyncio
from typing import Any

from relay.background import Chore, WithChores


async def application(scope: Any, receive: Any, send: Any) -> None:
    send(scope)


async def test_chores_begin_with_the_first_connection_and_go_on_also_after_one_failed() -> None:
    seen: list[Any] = []
    done = asyncio.Event()
    lateness: list[float] = []

    def chore(late_s: float) -> None:
        lateness.append(late_s)
        if len(lateness) == 1:
            raise RuntimeError("once")
        if len(lateness) == 3:
            done.set()

    wrapped = WithChores(application, Chore(0.01, chore))
    for scope in ("first", "second"):
        await wrapped(scope, None, seen.append)
    await asyncio.wait_for(done.wait(), 5)
    assert seen == ["first", "second"]
    assert all(0 <= late_s < 5 for late_s in lateness)


def test_each_loop_has_its_own() -> None:
    times: list[float] = []
    wrapped = WithChores(application, Chore(0.01, times.append))

    async def connect() -> None:
        await wrapped("scope", None, lambda _: None)
        until = len(times) + 1
        while len(times) < until:
            await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(connect(), 5))
    asyncio.run(asyncio.wait_for(connect(), 5))
    assert len(times) >= 2
