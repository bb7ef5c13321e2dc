"""What a process does beside answering: small things, again and again, from its loop's first connection on.

Daphne doesn't tell an application that it starts. Timers, not tasks: one that still waits when the loop ends is no
loose end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Chore:
    """`do` runs on the loop, doesn't wait, and is told how much later than planned it runs, in seconds."""

    period_s: float
    do: Callable[[float], None]


class WithChores:
    """The application, and beside it the chores."""

    def __init__(self, application: Application, *chores: Chore) -> None:
        self._application, self._chores = application, chores
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            for chore in self._chores:
                _plan(loop, chore)
        await self._application(scope, receive, send)


def _plan(loop: asyncio.AbstractEventLoop, chore: Chore) -> None:
    planned = loop.time() + chore.period_s
    loop.call_at(planned, _do, loop, chore, planned)


def _do(loop: asyncio.AbstractEventLoop, chore: Chore, planned: float) -> None:
    try:
        chore.do(max(0.0, loop.time() - planned))
    except Exception:
        logger.exception("what runs beside the relay failed; it is tried again in %s s", chore.period_s)
    _plan(loop, chore)
