"""The database from within a chat's coroutine, after the first byte: in a thread, whatever becomes of the coroutine."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections

Result = TypeVar("Result")
Given = ParamSpec("Given")

running: set[asyncio.Task[Any]] = set()  # the loop itself keeps tasks by weak references only


async def in_thread(function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Runs to its end even when this task is being cancelled: the work is a task of its own.

    It gets an empty context: in the request's, asgiref would use the request's thread, which ends with the request.
    """
    work = asyncio.get_running_loop().create_task(_run(function, *args, **kwargs), context=contextvars.Context())
    running.add(work)
    work.add_done_callback(running.discard)
    return await asyncio.shield(work)


async def _run(function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    def work() -> Result:
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()  # no request's end closes this thread's

    return await sync_to_async(work)()
