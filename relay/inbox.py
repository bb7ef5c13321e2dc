"""What comes over one socket, told to its consumer at once where the server can, without a turn of the loop each.

It stands where Daphne has a queue. A consumer that never asks hears everything by receive(), as on any server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

HEAR_NOW = "meshnet.hear_now"  # the ASGI extension of a server that can: takes whom to tell, or None

Message = dict[str, Any]
Tell = Callable[[Message], None]


class Inbox:
    """`queue` holds what comes before the consumer has asked, what comes behind that, and the socket's end."""

    __slots__ = ("_fail", "_tell", "queue")

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self.queue: Any = None  # Daphne's own
        self._fail = fail
        self._tell: Tell | None = None

    def hear_now(self, tell: Tell | None) -> None:
        self._tell = tell

    def put_nowait(self, message: Message) -> None:
        if self._tell is None or message["type"] != "websocket.receive" or not self.queue.empty():
            self.queue.put_nowait(message)
            return
        try:
            self._tell(message)
        except Exception as error:
            logger.exception("what came over a socket could not be handled; it is closed")
            self._fail(error)
