from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tracker.merging import PER_STREAM, merged


class Source:
    """Gives numbers from `start` on, after each of which it may be told to wait or to fail."""

    def __init__(self, start: int, count: int = 3, *, fails_after: int | None = None) -> None:
        self.numbers, self.fails_after = range(start, start + count), fails_after
        self.given: list[int] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.is_closed = False

    async def stream(self) -> AsyncGenerator[int, None]:
        try:
            for number in self.numbers:
                if len(self.given) == self.fails_after:
                    raise ValueError(f"no {number}")
                await self.may_go_on.wait()
                self.given.append(number)
                yield number
        finally:
            await asyncio.sleep(0)  # ends take a while, as those that are written down do
            self.is_closed = True


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_each_streams_items_come_in_its_order_behind_one_first_item() -> None:
    sources = [Source(0), Source(10), Source(20)]
    first, *others = [number async for number in merged([source.stream() for source in sources])]
    assert first == 0
    for source in sources:
        assert [number for number in others if number in source.numbers] == list(source.numbers)[1:]
    assert all(source.is_closed for source in sources)


async def test_the_first_item_waits_for_every_stream() -> None:
    quick, slow = Source(0), Source(10)
    slow.may_go_on.clear()
    async with aclosing(merged([quick.stream(), slow.stream()])) as items:
        first = asyncio.ensure_future(anext(items))
        await settle()
        assert not first.done()
        assert quick.given == [0]
        slow.may_go_on.set()
        assert await first == 0


async def test_a_stream_that_waits_keeps_nobody_waiting() -> None:
    quick, slow = Source(0), Source(10)
    async with aclosing(merged([slow.stream(), quick.stream()])) as items:
        await anext(items)
        slow.may_go_on.clear()
        assert [await anext(items), await anext(items)] == [1, 2]
        slow.may_go_on.set()
        assert [number async for number in items] == [11, 12]


async def test_a_reader_that_is_slow_is_waited_for() -> None:
    sources = [Source(0, 100), Source(1000, 100)]
    async with aclosing(merged([source.stream() for source in sources])) as items:
        for num_read in range(5):
            await anext(items)
            await settle()
            given = sum(len(source.given) for source in sources)
            assert given <= num_read + (PER_STREAM + 1) * len(sources) + len(sources)


@pytest.mark.parametrize("fails_after", [0, 1, 2])
async def test_one_that_fails_ends_all_with_its_error(fails_after: int) -> None:
    fails, others = Source(0, fails_after=fails_after), [Source(10, 1000), Source(20, 1000)]
    got = []

    async def read() -> None:
        async for number in merged([source.stream() for source in (*others, fails)]):
            got.append(number)

    with pytest.raises(ValueError, match=f"no {fails_after}"):
        await read()
    assert all(source.is_closed for source in (fails, *others))
    assert [number for number in got if number in fails.numbers] == list(range(1, fails_after)), "what came before it"


@pytest.mark.parametrize("num_read", [0, 1, 3])
async def test_a_reader_that_leaves_closes_all(num_read: int) -> None:
    sources = [Source(0, 1000), Source(1000, 1000)]

    async def read() -> None:
        async with aclosing(merged([source.stream() for source in sources])) as items:
            for _ in range(num_read):
                await anext(items)
            for source in sources:
                source.may_go_on.clear()
            async for _ in items:
                pass

    reader = asyncio.ensure_future(read())
    await settle()
    reader.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reader
    assert all(source.is_closed for source in sources)


async def test_a_reader_that_leaves_before_the_streams_have_begun_closes_all() -> None:
    sources = [Source(0), Source(10)]
    reader = asyncio.ensure_future(anext(merged([source.stream() for source in sources])))
    await asyncio.sleep(0)
    reader.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reader
    assert all(source.is_closed for source in sources)


async def test_closed_between_two_items_it_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    sources = [Source(0, 1000), Source(1000, 1000)]
    items = merged([source.stream() for source in sources])
    await anext(items)
    await anext(items)
    await items.aclose()
    assert all(source.is_closed for source in sources)
    assert asyncio.all_tasks() == before
