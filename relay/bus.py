"""Messages between the processes of one site, over Redis' pub/sub.

One channel per process. Pub/sub promises nothing, so pairs.py numbers what is said. What fails here is said once:
`failed(process, why)` for one other process, BusLost from run() for Redis itself. A word to ourselves each second shows
that the subscription is alive; without it a dead one looks like silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgpack

from relay.leases import OPERATION_S
from relay.pairs import TICK_S, Message, Pair
from relay.pubsub import Line, Refused

logger = logging.getLogger(__name__)

CHANNEL = "meshnet.process."  # and the process' id
BEAT_TICKS = 10
MAX_SILENT_TICKS = 30  # without hearing ourselves


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
        self.process, self.is_up = process, False
        self.pairs: dict[str, Pair] = {}
        self.heard: set[str] = set()  # who said anything since this was last emptied
        self._hear, self._failed = hear, failed
        self._url, self._silent_ticks = url, 0
        self._writing: Line | None = None
        self._is_flush_planned = False

    def has_room(self, process: str, num_bytes: int) -> bool:
        return self.is_up and self._pair(process).has_room(num_bytes)

    def send(self, process: str, item: bytes) -> bool:
        """False where it would wait too long, or can't go at all."""
        if not self.is_up or not self._pair(process).offer(item):
            return False
        if not self._is_flush_planned:  # the first of a turn goes at once, the others of it together
            self._is_flush_planned = True
            self._flush()
            asyncio.get_running_loop().call_soon(self._flush_rest)
        return True

    def drop(self, process: str) -> None:
        """The process is dead."""
        self.pairs.pop(process, None)

    async def run(self, opened: Callable[[], None]) -> None:
        """Subscribes, calls `opened`, carries messages. Ends only by BusLost, or cancelled; harmless to call again."""
        over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def ended(why: str) -> None:
            if not over.done():
                over.set_result(why)

        reading, writing = Line(self._heard, ended, self._flush), Line(self._heard, ended, self._flush)
        ticking: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(OPERATION_S):
                await self._open(reading, writing)
            self._writing, self._silent_ticks, self.is_up = writing, 0, True
            opened()
            ticking = asyncio.create_task(self._tick(ended))
            ends: list[asyncio.Future[Any]] = [over, ticking]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if ticking.done():
                ticking.result()
            raise BusLost(over.result())
        except TimeoutError:
            raise BusLost(f"no answer in {OPERATION_S:.0f} s") from None
        except (OSError, Refused) as error:
            raise BusLost(str(error) or type(error).__name__) from None
        finally:
            self.is_up, self._writing = False, None
            self.fail_all("Redis can't be reached")
            reading.close()
            writing.close()
            if ticking:
                ticking.cancel()

    def fail_all(self, why: str) -> None:
        for process, pair in self.pairs.items():
            pair.fail(why)
            self._failed(process, why)

    async def _open(self, reading: Line, writing: Line) -> None:
        await reading.open(self._url)
        await reading.ask("SUBSCRIBE", CHANNEL + self.process)
        await writing.open(self._url)
        writing.say(
            "CLIENT", "REPLY", "OFF"
        )  # what is lost shows in the pairs' numbers; how many heard it says nothing

    def _heard(self, payload: bytes) -> None:
        try:
            said = msgpack.unpackb(payload)
        except ValueError:
            said = None
        process, message = (said.get("from"), _message(said)) if isinstance(said, dict) else (None, None)
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
            self._flush()

    def _flush(self) -> None:
        """Each pair in turn, so that a large body to one process doesn't hold up the others."""
        is_idle = False
        while not is_idle and self._writing and not self._writing.is_full:
            is_idle = True
            for process, pair in list(self.pairs.items()):
                if message := pair.next_message():
                    is_idle = False
                    self._publish(process, _said(self.process, message))

    def _flush_rest(self) -> None:
        self._is_flush_planned = False
        self._flush()

    async def _tick(self, ended: Callable[[str], None]) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            self._silent_ticks += 1
            if self._silent_ticks > MAX_SILENT_TICKS:
                return ended("the subscription is silent")
            for process, pair in list(self.pairs.items()):
                if why := pair.tick():
                    self._failed(process, why)
            if ticks % BEAT_TICKS == 0:
                self._publish(self.process, {"from": self.process})
            self._flush()

    def _publish(self, process: str, said: dict[str, Any]) -> None:
        if self._writing:
            self._writing.say("PUBLISH", CHANNEL + process, msgpack.packb(said))

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
