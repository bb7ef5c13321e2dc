"""Makes sending over a Daphne WebSocket wait while its reader is behind.

Daphne's send() returns at once and buffers without limit; Twisted tells whoever registers when that buffer is full.
"""

from __future__ import annotations

import asyncio
from typing import Any

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer  # type: ignore[import-untyped]


@implementer(IPushProducer)
class Valve:
    """Of one transport, in the place of the HTTP channel from before the upgrade, which would stop all reading."""

    __slots__ = ("_opened",)

    def __init__(self, transport: Any) -> None:
        self._opened: asyncio.Future[None] | None = None
        transport.unregisterProducer()
        transport.registerProducer(self, True)

    @property
    def is_shut(self) -> bool:
        return self._opened is not None

    async def opened(self) -> None:
        """Until what was sent has left this process, or its connection has ended."""
        while self._opened:
            await asyncio.shield(self._opened)

    def pauseProducing(self) -> None:
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()

    def resumeProducing(self) -> None:
        if self._opened:
            opened, self._opened = self._opened, None
            opened.set_result(None)

    stopProducing = resumeProducing
