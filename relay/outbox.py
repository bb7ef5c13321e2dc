"""What waits to be written to one socket: in order, by one task, bounded in bytes.

Handlers only put. On a server that waits in send() this queue is where a slow reader shows; Daphne's send() returns
at once and buffers itself, so there the caps on requests in flight are the bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from relay import wire

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 2 * wire.MAX_BYTES_IN_FLIGHT

Message = dict[str, Any]


class Outbox:
    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._num_bytes = 0

    def accept(self) -> None:
        self._messages.put_nowait({"type": "websocket.accept"})

    def put(self, text: str) -> bool:
        """False when the reader is so far behind that this one doesn't fit."""
        if self._num_bytes + len(text) > MAX_UNSENT_BYTES:
            return False
        self._num_bytes += len(text)
        self._messages.put_nowait({"type": "websocket.send", "text": text})
        return True

    def end(self, text: str, code: int) -> None:
        """The last text and the close, whatever else waits."""
        self._messages.put_nowait({"type": "websocket.send", "text": text})
        self._messages.put_nowait({"type": "websocket.close", "code": code})

    async def run(self, send: Callable[[Message], Awaitable[None]]) -> None:
        try:
            while True:
                message = await self._messages.get()
                await send(message)
                self._num_bytes -= len(message.get("text", ""))
                if message["type"] == "websocket.close":
                    return
        except OSError:
            pass  # the socket has gone; its consumer hears of that from the server
        except Exception:
            logger.exception("writing to a socket failed")
