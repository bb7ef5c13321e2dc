"""Several async generators read as one: their items as they come, a bounded number of them at a time.

For choices that are made side by side. Whoever stops reading, or one that fails, ends all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

PER_STREAM = 2  # items that wait to be read: a stream that is faster than its reader waits, too


@dataclass(frozen=True, slots=True)
class _Passed(Generic[Item]):
    item: Item


_Ended = Exception | None  # how a stream did


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """The first item comes when each stream has given its first, and is one of these; the others of these are dropped.

    Raises what a stream raises. All of them are closed when this ends or is closed.
    """
    passed: asyncio.Queue[_Passed[Item] | _Ended] = asyncio.Queue(PER_STREAM * len(streams))
    tasks: list[asyncio.Future[None]] = []
    try:
        yield await _firsts(streams)
        tasks += [asyncio.ensure_future(_pump(stream, passed)) for stream in streams]
        num_open = len(streams)
        while num_open:
            got = await passed.get()
            if isinstance(got, _Passed):
                yield got.item
            elif got is not None:
                raise got
            else:
                num_open -= 1
    finally:
        await _end(tasks)
        await asyncio.gather(*(stream.aclose() for stream in streams), return_exceptions=True)


async def _firsts(streams: Sequence[AsyncGenerator[Item, None]]) -> Item:
    """All are waited for at once; where one fails or this is cancelled, the others are waited for no longer."""
    tasks = [asyncio.ensure_future(anext(stream)) for stream in streams]
    try:
        await asyncio.sleep(0)  # a generator that is closed before it has begun does nothing: by now all have
        return (await asyncio.gather(*tasks))[0]
    finally:
        await _end(tasks)


async def _pump(stream: AsyncGenerator[Item, None], passed: asyncio.Queue[_Passed[Item] | _Ended]) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await passed.put(_Passed(item))
    except Exception as error:  # whatever it is, the reader is who gets it
        await passed.put(error)
    else:
        await passed.put(None)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
