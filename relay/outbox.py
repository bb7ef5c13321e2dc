"""What waits to be written to one socket: in order, by one task while there is something, bounded in bytes.

Handlers only put. The writer stops where the reader is too far behind: in the server's send() where that waits, and
by the credit of a version 2 socket. What then waits here is bounded, for a socket and for the process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from relay import metrics, wire

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES = wire.MAX_UNREAD_BYTES + wire.MAX_BODY_BYTES
SMALL_BYTES = wire.MAX_BODY_BYTES  # what a socket may have waiting even when the process' bound is reached
FAREWELL_S = 2.0  # for the last words, and what waits before them

HEAR_NOW = "meshnet.hear_now"  # and of one that hands over what comes without a queue
SEND_NOW = "meshnet.send_now"  # the ASGI extension of a server that can: takes a message, or says that it would wait

Message = dict[str, Any]


class Unsent:
    """Over all sockets of the process."""

    num_bytes = 0


unsent = Unsent()


class Outbox:
    __slots__ = (
        "_farewell",
        "_has_credit",
        "_is_ended",
        "_pong",
        "_send",
        "_send_now",
        "_task",
        "_waiting",
        "num_bytes",
    )

    def __init__(
        self, send: Callable[[Message], Awaitable[None]], send_now: Callable[[Message], bool] | None = None
    ) -> None:
        self._send, self._send_now = send, send_now
        self._waiting: deque[tuple[Message, int, float]] = deque()  # message, weight, since when
        self._pong: Message | None = None
        self._task: asyncio.Task[None] | None = None
        self._farewell: asyncio.TimerHandle | None = None
        self._has_credit: Callable[[], bool] | None = None
        self._is_ended = False
        self.num_bytes = 0

    def accept(self, subprotocol: str | None = None) -> None:
        self._append({"type": "websocket.accept", "subprotocol": subprotocol}, 0)

    def put(self, data: str | bytes, weight: int) -> bool:
        """False when the reader is so far behind that this one doesn't fit."""
        num_bytes = self.num_bytes + weight
        if num_bytes > MAX_UNSENT_BYTES:
            return False
        if num_bytes > SMALL_BYTES and unsent.num_bytes + weight > wire.MAX_BYTES_PER_PROCESS:
            return False
        self._append(_message(data), weight)
        return True

    def put_pong(self, data: bytes) -> None:
        """Before all that waits; of several that wait the last one says everything."""
        if not self._is_ended:
            self._pong = _message(data)
            self._wake()

    def limit(self, has_credit: Callable[[], bool]) -> None:
        """From now on messages are written while that is true; `credited` says that it may be again."""
        self._has_credit = has_credit

    def credited(self) -> None:
        if self._waiting:
            self._wake()

    def end(self, data: str | bytes, code: int, *, at_once: bool = False) -> None:
        """The last words and the close: after what waits, if its reader takes it in time, or at once."""
        if self._is_ended:
            return
        self._append(_message(data), 0)
        self._append({"type": "websocket.close", "code": code}, 0)
        self._is_ended, self._has_credit = True, None
        if at_once:
            return self._hurry()
        self._farewell = asyncio.get_running_loop().call_later(FAREWELL_S, self._hurry)

    def drop(self) -> None:
        """The socket has gone."""
        self._is_ended = True
        if self._farewell:
            self._farewell.cancel()
        if self._task:
            self._task.cancel()
        self._clear()

    def _append(self, message: Message, weight: int) -> None:
        if self._is_ended or self._is_sent_now(message):
            return
        self._waiting.append((message, weight, time.perf_counter()))
        self.num_bytes += weight
        unsent.num_bytes += weight
        self._wake()

    def _is_sent_now(self, message: Message) -> bool:
        """When nothing is before it and nobody has to wait: most messages, and half the cost of each."""
        if self._send_now is None or self._waiting or self._task or self._pong:
            return False
        if self._has_credit and not self._has_credit():
            return False
        if not self._send_now(message):
            return False
        metrics.queue_s.add(0.0)
        return True

    def _wake(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write())

    def _clear(self) -> None:
        self._waiting.clear()
        unsent.num_bytes -= self.num_bytes
        self.num_bytes = 0

    def _hurry(self) -> None:
        """Only the last words are still written, and nobody waits for them to be read."""
        if not self._waiting:
            return
        last = [message for message, _, _ in self._waiting][-2:]
        self._clear()
        if self._task:
            self._task.cancel()
        self._task = asyncio.get_running_loop().create_task(self._say_farewell(last))

    async def _write(self) -> None:
        try:
            while message := self._next():
                await self._send(message)
        except OSError:
            self._clear()  # the socket has gone; its consumer hears of that from the server
        except Exception:
            self._clear()
            logger.exception("writing to a socket failed")
        self._task = None

    def _next(self) -> Message | None:
        if self._pong:
            message, self._pong = self._pong, None
            return message
        if not self._waiting or (self._has_credit and not self._has_credit()):
            return None
        message, weight, since = self._waiting.popleft()
        metrics.queue_s.add(time.perf_counter() - since)
        self.num_bytes -= weight
        unsent.num_bytes -= weight
        return message

    async def _say_farewell(self, last: list[Message]) -> None:
        for message in last:
            try:
                await asyncio.wait_for(self._send(message), FAREWELL_S)
            except OSError:  # a TimeoutError too
                continue
            except Exception:
                logger.exception("closing a socket failed")


def _message(data: str | bytes) -> Message:
    return {"type": "websocket.send", "text" if isinstance(data, str) else "bytes": data}
