"""One connection to Redis for its pub/sub: says commands without waiting for a reply, hears what is published.

A client library's way, a pool, a task and a timer for each message and one more for its reply, costs several times what
Redis itself does. hiredis reads and writes the protocol; here is what stands around it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url

logger = logging.getLogger(__name__)

FULL_BYTES = 1024 * 1024  # written and not taken by the kernel; over it `is_full`


class Refused(Exception):
    """Redis answered with an error."""


class Line(asyncio.Protocol):
    """`hear(payload)` gets what is published, `ended(why)` is told once, `drained()` when it is full no more."""

    def __init__(
        self, hear: Callable[[bytes], None], ended: Callable[[str], None], drained: Callable[[], None]
    ) -> None:
        self._hear, self._ended, self._drained = hear, ended, drained
        self._reader = hiredis.Reader()
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._transport: Any = None
        self._is_over = False
        self.is_full = False

    async def open(self, url: str) -> None:
        """Connects and logs in. Raises OSError, Refused; the deadline is the caller's."""
        loop, options = asyncio.get_running_loop(), parse_url(url)
        if path := options.get("path"):
            await loop.create_unix_connection(lambda: self, path)
        else:
            context = tls(dict(options)) if options.get("connection_class") is SSLConnection else None
            host, port = options.get("host", "localhost"), options.get("port", 6379)
            await loop.create_connection(lambda: self, host, port, ssl=context)
        if password := options.get("password"):
            names = [options["username"]] if options.get("username") else []
            await self.ask("AUTH", *names, password)

    async def ask(self, *words: str | bytes) -> Any:
        """The reply."""
        asked = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self.say(*words)
        return await asked

    def say(self, *words: str | bytes) -> None:
        if not self._is_over:
            self._transport.write(hiredis.pack_command(words))  # type: ignore[arg-type]  # of any length

    def close(self) -> None:
        """At once, and nobody is told."""
        self._is_over = True
        if self._transport:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=FULL_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while not self._is_over and (reply := self._reader.gets()) is not False:
                self._take(reply)
        except hiredis.ProtocolError as error:
            self._end(f"Redis said what can't be read: {error}")
        except Exception:
            logger.exception("a message between processes failed")
            self._end("an error of ours")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "Redis closed the connection")

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        self._drained()

    def _take(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[:1] == [b"message"]:
            return self._hear(reply[2])
        error = Refused(str(reply)) if isinstance(reply, hiredis.ReplyError) else None
        asked = self._asked.popleft() if self._asked else None
        if asked and not asked.done():
            if error:
                return asked.set_exception(error)
            return asked.set_result(reply)
        if error:
            self._end(str(error))

    def _end(self, why: str) -> None:
        if self._is_over:
            return
        self.close()
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(ConnectionResetError(why))
        self._ended(why)


def tls(options: dict[str, Any]) -> ssl.SSLContext:
    """As the options of a rediss:// URL want it; the same names as redis-py's."""
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if options.get("ssl_certfile"):
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif str(options.get("ssl_check_hostname", True)).lower() == "false":
        context.check_hostname = False
    return context
