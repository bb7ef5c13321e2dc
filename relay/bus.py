"""Messages between the processes of one site, over Redis' pub/sub: the only user of the channel layer.

One channel per process, read by one task; one task writes. Pub/sub promises nothing, so pairs.py numbers what is said.
What fails here is said once: `failed(process, why)` for one other process, BusLost from run() for Redis itself. A word
to ourselves each second shows that the subscription is alive; without it a dead one looks like silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from channels_redis.pubsub import RedisPubSubChannelLayer
from redis.exceptions import RedisError

from relay.leases import OPERATION_S, connecting
from relay.pairs import TICK_S, Message, Pair

logger = logging.getLogger(__name__)

CHANNEL = "meshnet.process."  # and the process' id
BEAT_TICKS = 10
MAX_SILENT_TICKS = 30  # without hearing ourselves
SUBSCRIBED_WAIT_S = 0.1


class BusLost(Exception):
    """Redis' pub/sub can't be reached, or hears us no more."""


class Bus:
    """`hear(process, item)` gets what others send, `failed(process, why)` ends everything between us and that one."""

    def __init__(
        self,
        url: str,
        process: str,
        hear: Callable[[str, bytes], None],
        failed: Callable[[str, str], None],
    ) -> None:
        _quieten()
        self.process, self.is_up = process, False
        self.pairs: dict[str, Pair] = {}
        self.heard: set[str] = set()  # who said anything since this was last emptied
        self._hear, self._failed = hear, failed
        self._layer = RedisPubSubChannelLayer(hosts=[{"address": url, **connecting(url)}])
        self._wake = asyncio.Event()
        self._silent_ticks = 0
        self._owes_beat = False

    def has_room(self, process: str, num_bytes: int) -> bool:
        return self.is_up and self._pair(process).has_room(num_bytes)

    def send(self, process: str, item: bytes) -> bool:
        """False where it would wait too long, or can't go at all."""
        if not self.is_up or not self._pair(process).offer(item):
            return False
        self._wake.set()
        return True

    def drop(self, process: str) -> None:
        """The process is dead."""
        self.pairs.pop(process, None)

    async def run(self, opened: Callable[[], None]) -> None:
        """Subscribes, calls `opened`, carries messages. Ends only by BusLost, or cancelled; harmless to call again."""
        reading = asyncio.create_task(self._read())
        tasks = [reading]
        try:
            await self._subscribed(reading)
            self.is_up = True
            tasks += [asyncio.create_task(it) for it in (self._write(), self._tick())]
            opened()
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except TimeoutError:
            raise BusLost(f"no answer in {OPERATION_S:.0f} s") from None
        except (RedisError, OSError) as error:
            raise BusLost(str(error) or type(error).__name__) from None
        finally:
            self.is_up = False
            self.fail_all("Redis can't be reached")
            await self._close(tasks)

    def fail_all(self, why: str) -> None:
        for process, pair in self.pairs.items():
            pair.fail(why)
            self._failed(process, why)

    async def _subscribed(self, reading: asyncio.Task[None]) -> None:
        """Until we hear ourselves. Redis has to manage that in a bounded time."""
        self._silent_ticks = MAX_SILENT_TICKS
        async with asyncio.timeout(OPERATION_S):
            while self._silent_ticks:
                if reading.done():
                    reading.result()
                await self._publish(self.process, {"from": self.process})
                await asyncio.sleep(SUBSCRIBED_WAIT_S if self._silent_ticks else 0)

    async def _read(self) -> None:
        while True:
            said = await self._layer.receive(CHANNEL + self.process)
            process, message = said.get("from"), _message(said)
            if process == self.process:
                self._silent_ticks = 0
            elif isinstance(process, str) and message:
                self._received(process, message)
            else:
                logger.warning("a message between processes can't be read; do all run the same version?")

    def _received(self, process: str, message: Message) -> None:
        self.heard.add(process)
        pair = self._pair(process)
        received = pair.receive(message)
        if received.failure:
            self._failed(process, received.failure)
        for item in received.items:
            self._hear(process, item)
        if pair.owes_word:
            self._wake.set()

    async def _write(self) -> None:
        """Each pair in turn, so that a large body to one process doesn't hold up the others."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            is_idle = False
            while not is_idle:
                is_idle = not self._owes_beat
                if self._owes_beat:
                    self._owes_beat = False
                    await self._publish(self.process, {"from": self.process})
                for process, pair in list(self.pairs.items()):
                    if message := pair.next_message():
                        is_idle = False
                        await self._publish(process, _said(self.process, message))

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            self._silent_ticks += 1
            if self._silent_ticks > MAX_SILENT_TICKS:
                raise BusLost("the subscription is silent")
            for process, pair in list(self.pairs.items()):
                if why := pair.tick():
                    self._failed(process, why)
            self._owes_beat = self._owes_beat or ticks % BEAT_TICKS == 0
            self._wake.set()

    async def _publish(self, process: str, said: dict[str, Any]) -> None:
        async with asyncio.timeout(OPERATION_S):
            await self._layer.send(CHANNEL + process, said)

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        """Nothing is left of the subscription. A reader that is cancelled must not find its channel: it would wait."""
        self._layer.channels.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(OPERATION_S):
                await self._layer.flush()

    def _pair(self, process: str) -> Pair:
        return self.pairs.setdefault(process, Pair())


def _said(process: str, message: Message) -> dict[str, Any]:
    """As it travels, in msgpack. `a` acknowledges, `c`: the last item is cut, `p`: a probe."""
    said: dict[str, Any] = {"from": process, "e": message.epoch, "n": message.number, "a": message.acknowledged}
    if message.items:
        said |= {"i": list(message.items), "c": message.is_cut}
    if message.is_probe:
        said["p"] = True
    return said


def _message(said: dict[str, Any]) -> Message | None:
    epoch, number, acknowledged, items = said.get("e"), said.get("n"), said.get("a"), said.get("i", [])
    if not isinstance(epoch, int) or not isinstance(number, int) or not isinstance(acknowledged, int):
        return None
    if not isinstance(items, list) or not all(isinstance(item, bytes) for item in items):
        return None
    return Message(epoch, number, acknowledged, tuple(items), said.get("c") is True, said.get("p") is True)


def _quieten() -> None:
    """The layer logs a traceback each second while Redis is away; what is to be said of that is said once."""
    logging.getLogger("channels_redis.pubsub").disabled = True
