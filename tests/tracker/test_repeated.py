from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tracker.repeated import Repeated


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 10)


async def test_it_runs_in_a_thread_and_never_twice_at_once() -> None:
    names: list[str] = []
    may_end, has_begun = threading.Event(), threading.Event()

    def do() -> None:
        names.append(threading.current_thread().name)
        has_begun.set()
        assert may_end.wait(10)

    repeated = Repeated("a slow thing", do)
    repeated.start()
    await until(has_begun)
    repeated.start()
    may_end.set()
    assert repeated._running
    await asyncio.wait_for(repeated._running, 10)
    assert len(names) == 1
    assert names[0].startswith("a-slow-thing")
    repeated.start()
    await asyncio.wait_for(repeated._running, 10)
    assert len(names) == 2


@pytest.mark.django_db
def test_what_fails_again_and_again_is_told_once_and_tried_on(caplog: pytest.LogCaptureFixture) -> None:
    is_away = True

    def do() -> None:
        if is_away:
            raise RuntimeError("the database is away")

    repeated = Repeated("a thing", do)
    with caplog.at_level(logging.ERROR):
        repeated.run()
        repeated.run()
        assert [record.getMessage() for record in caplog.records] == ["a thing failed; it is tried again"]
        is_away = False
        repeated.run()
        is_away = True
        repeated.run()
    assert len(caplog.records) == 2
