"""A TCP proxy that disturbs connections on demand, told apart by the path of their first HTTP request line.

with FaultProxy(upstream=("127.0.0.1", 8000)) as proxy:
    proxy.fail("/rpc", "refuse")             # new connections to /rpc… are closed at once
    proxy.fail("/rpc", "blackhole")          # what is sent is lost, and nobody hears that anybody has gone
    proxy.fail("/ws", "pause", DOWN)         # nothing is taken from the site until heal(); then all of it arrives
    proxy.throttle("/ws", 50_000, DOWN)      # bytes a second
    proxy.delay("/ws", 40)                   # milliseconds, each way
    held = proxy.hold("/ws", lambda message: b"x-meshnet-step" in message, UP)   # one message stays behind
    held.wait(); held.release()              # it is there; it is delivered, after those that overtook it
    proxy.cut("/rpc")                        # open connections are reset
    proxy.heal("/rpc")                       # no fault for this prefix any more
    proxy.watch(watcher)                     # is shown each message before it passes

Connections of one path are told apart by `whose`: where it finds a name in the request's head, "name" and "name /ws"
are prefixes of them.

A direction is seen from the client: UP is what the client sends. A connection that lost bytes in a black hole stays
dead after `heal`, as only a stretch of lost time can be made good.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from tests.lab.messages import Splitter

Direction = Literal["up", "down", "both"]
UP: Direction = "up"
DOWN: Direction = "down"
BOTH: Direction = "both"
Predicate = Callable[[bytes], bool]
Watcher = Callable[["Link", Direction, bytes], None]  # runs on the proxy's own thread: nothing passes meanwhile
Result = TypeVar("Result")

FIRST_BYTES_DEADLINE_S = 10.0
POLL_S = 0.01
READ_SIZE = 65536
MAX_ON_THE_WAY_BYTES = 256 * 1024  # in one direction of one connection; beyond it the sender has to wait
SLICES_PER_S = 50  # of what a throttle lets through


@dataclass(frozen=True)
class _Fault:
    prefix: str
    direction: Direction
    how: str = ""  # "refuse", "blackhole", "pause"
    bytes_per_s: float = 0.0
    delay_s: float = 0.0
    hold: Hold | None = None

    def concerns(self, path: str, direction: Direction) -> bool:
        return path.startswith(self.prefix) and (self.direction in (BOTH, direction) or direction == BOTH)


class Hold:
    """The first message that the predicate recognises. Those behind it overtake it."""

    def __init__(self, proxy: FaultProxy, predicate: Predicate) -> None:
        self._proxy, self._predicate = proxy, predicate
        self._caught = threading.Event()
        self._message = self._data = b""
        self._flow: _Flow | None = None

    def wait(self, deadline_s: float = 10) -> bytes:
        """The message, once it is held: a frame's payload, or an HTTP request or answer whole."""
        assert self._caught.wait(deadline_s), "no message was recognised"
        return self._message

    def release(self) -> bool:
        """Delivers it between two others. False: its connection has ended."""
        assert self._caught.is_set(), "nothing is held"
        return self._proxy._on_loop(self._release())

    def takes(self, flow: _Flow, message: bytes, data: bytes) -> bool:
        if self._flow or not self._predicate(message):
            return False
        self._flow, self._message, self._data = flow, message, data
        flow.num_held += 1
        self._caught.set()
        return True

    async def _release(self) -> bool:
        assert self._flow is not None
        self._flow.num_held -= 1
        return self._flow.insert(self._data)


class _Flow:
    """One direction of one connection: read, looked at, kept for its delay, written."""

    def __init__(self, proxy: FaultProxy, link: Link, direction: Direction) -> None:
        self._proxy, self._link, self._direction = proxy, link, direction
        self._splitter = Splitter()
        self._waiting: deque[tuple[float, bytes]] = deque()  # (when it is due, bytes)
        self._late: list[bytes] = []  # released in the middle of another message
        self._arrived = asyncio.Event()
        self._has_ended = self.is_lost = False
        self.num_held = 0

    def insert(self, data: bytes) -> bool:
        if self._has_ended or self.is_lost:
            return False
        if self._splitter.is_between_messages:
            self._put(data)
        else:
            self._late.append(data)
        return True

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes = b"") -> None:
        """Until the sender has gone and what it sent has arrived."""
        writing = asyncio.create_task(self._write(writer))
        try:
            if first:
                self._take(first)
            while data := await self._read(reader):
                self._take(data)
            while self.num_held or self.is_lost:
                await asyncio.sleep(POLL_S)
            while self._waiting and not writing.done():
                await asyncio.sleep(POLL_S)
        finally:
            self._has_ended = True
            writing.cancel()

    def _faults(self) -> list[_Fault]:
        return self._proxy._faults_of(self._link.path, self._direction)

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        while sum(len(data) for _, data in self._waiting) > MAX_ON_THE_WAY_BYTES or self._is("pause"):
            await asyncio.sleep(POLL_S)
        data = b""
        with contextlib.suppress(OSError):
            data = await reader.read(READ_SIZE)
        self.is_lost = self.is_lost or self._is("blackhole")
        return data

    def _take(self, data: bytes) -> None:
        self.is_lost = self.is_lost or self._is("blackhole")
        if self.is_lost:
            return
        is_looked_at = bool(self._proxy._watchers) or any(fault.hold for fault in self._faults())
        for piece in self._splitter.feed(data, whole=is_looked_at):
            message = piece.message
            if message is not None:
                self._show(message)
            if self._is("blackhole"):  # by now: a watcher may have made it one
                self.is_lost = True
                return
            holds = [fault.hold for fault in self._faults() if fault.hold]
            if message is None or not any(hold.takes(self, message, piece.data) for hold in holds):
                self._put(piece.data)
            if piece.ends:
                late, self._late = self._late, []
                for held in late:
                    self._put(held)

    def _show(self, message: bytes) -> None:
        for watcher in self._proxy._watchers:
            watcher(self._link, self._direction, message)

    def _put(self, data: bytes) -> None:
        delay_s = max((fault.delay_s for fault in self._faults()), default=0.0)
        self._waiting.append((asyncio.get_running_loop().time() + delay_s, data))
        self._arrived.set()

    def _is(self, how: str) -> bool:
        return any(fault.how == how for fault in self._faults())

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                while not self._waiting:
                    self._arrived.clear()
                    await self._arrived.wait()
                due, data = self._waiting[0]
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
                while self._is("pause"):
                    await asyncio.sleep(POLL_S)
                await self._send(writer, data)
                self._waiting.popleft()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        left = memoryview(data)
        while left and not self._is("blackhole"):
            rate = min((fault.bytes_per_s for fault in self._faults() if fault.bytes_per_s), default=0.0)
            size = max(1, int(rate / SLICES_PER_S)) if rate else len(left)
            writer.write(left[:size])
            await writer.drain()
            if rate:
                await asyncio.sleep(min(size, len(left)) / rate)
            left = left[size:]
        self.is_lost = self.is_lost or bool(left)


class Link:
    """One client's connection and the one to the upstream that serves it."""

    def __init__(self, path: str, client: asyncio.StreamWriter) -> None:
        self.path, self._ends = path, [client]

    def joins(self, upstream: asyncio.StreamWriter) -> None:
        self._ends.append(upstream)

    def close(self, *, reset: bool = False) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    end.transport.abort()
                else:
                    end.close()


class FaultProxy:
    """`upstream_address` may be changed: it holds for connections to come. `whose`: of a request's head, or ""."""

    def __init__(self, upstream: tuple[str, int], whose: Callable[[bytes], str] | None = None) -> None:
        self.upstream_address, self._whose = upstream, whose
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._faults: tuple[_Fault, ...] = ()  # replaced, never changed: read by the loop's thread
        self._watchers: tuple[Watcher, ...] = ()
        self._links: set[Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self.opened: list[str] = []  # paths of the connections so far
        self.opened_at: list[float] = []  # by time.monotonic()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._on_loop(asyncio.start_server(self._serve, sock=self._listener))
        return self

    def __exit__(self, *exc: object) -> None:
        self._on_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def fail(self, prefix: str, how: Literal["refuse", "blackhole", "pause"], direction: Direction = BOTH) -> None:
        self._add(_Fault(prefix, direction, how))

    def throttle(self, prefix: str, bytes_per_s: float, direction: Direction = BOTH) -> None:
        self._add(_Fault(prefix, direction, bytes_per_s=bytes_per_s))

    def delay(self, prefix: str, ms: float, direction: Direction = BOTH) -> None:
        self._add(_Fault(prefix, direction, delay_s=ms / 1000))

    def hold(self, prefix: str, predicate: Predicate, direction: Direction = UP) -> Hold:
        hold = Hold(self, predicate)
        self._add(_Fault(prefix, direction, hold=hold))
        return hold

    def watch(self, watcher: Watcher) -> None:
        """For connections to come. One that is watched holds each message back until its last byte is there."""
        self._watchers = (*self._watchers, watcher)

    def heal(self, prefix: str) -> None:
        """What is held stays held until it is released."""
        self._faults = tuple(fault for fault in self._faults if fault.prefix != prefix)

    def cut(self, prefix: str) -> int:
        """Resets the open connections whose path starts with `prefix`; how many there were."""
        return self._on_loop(self._cut(prefix))

    def num_open(self, prefix: str) -> int:
        return sum(link.path.startswith(prefix) for link in list(self._links))

    def _add(self, fault: _Fault) -> None:
        self._faults = (*self._faults, fault)

    def _faults_of(self, path: str, direction: Direction) -> list[_Fault]:
        return [fault for fault in self._faults if fault.concerns(path, direction)]

    def _on_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(10)

    async def _cut(self, prefix: str) -> int:
        hit = [link for link in self._links if link.path.startswith(prefix)]
        for link in hit:
            link.close(reset=True)
            self._links.discard(link)
        return len(hit)

    async def _stop(self) -> None:
        self._server.close()
        await self._cut("")
        running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await _first_bytes(reader, b"\r\n\r\n" if self._whose else b"\n")
        path = first.split(b" ")[1].decode("latin-1") if first.count(b" ") >= 2 else ""
        if self._whose and (name := self._whose(first)):
            path = f"{name} {path}"
        link = Link(path, writer)
        self.opened_at.append(time.monotonic())
        self.opened.append(path)
        self._links.add(link)
        try:
            await self._carry(link, first, reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # an end has gone, or cut() closed it
        finally:
            link.close()
            self._links.discard(link)

    async def _carry(
        self, link: Link, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if any(fault.how == "refuse" for fault in self._faults_of(link.path, BOTH)):
            return
        from_upstream, to_upstream = await asyncio.wait_for(asyncio.open_connection(*self.upstream_address), 5)
        link.joins(to_upstream)
        flows = [
            asyncio.create_task(_Flow(self, link, UP).carry(reader, to_upstream, first)),
            asyncio.create_task(_Flow(self, link, DOWN).carry(from_upstream, writer)),
        ]
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for flow in flows:
                flow.cancel()


async def _first_bytes(client: asyncio.StreamReader, end: bytes) -> bytes:
    """What the client sends first, up to the end of its request line or of the request's head."""
    data = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(FIRST_BYTES_DEADLINE_S):
            while end not in data and len(data) < 8192:
                piece = await client.read(4096)
                if not piece:
                    break
                data += piece
    return data
