from __future__ import annotations

import asyncio

from relay.valve import Valve


class Transport:
    """Twisted's, as far as a producer sees it. `channel` is what is registered before."""

    def __init__(self) -> None:
        self.producer: object = "channel"

    def unregisterProducer(self) -> None:
        self.producer = None

    def registerProducer(self, producer: object, streaming: bool) -> None:
        assert self.producer is None
        assert streaming
        self.producer = producer


async def test_it_takes_the_place_of_who_would_stop_all_reading() -> None:
    transport = Transport()
    valve = Valve(transport)
    assert transport.producer is valve


async def test_senders_wait_while_the_buffer_is_full_and_go_on_when_it_is_empty() -> None:
    valve = Valve(Transport())
    await valve.opened()
    valve.pauseProducing()
    valve.pauseProducing()  # each write to a full buffer says so
    waiting = [asyncio.ensure_future(valve.opened()) for _ in range(3)]
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert valve.is_shut
    assert not done
    valve.resumeProducing()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert not valve.is_shut


async def test_a_sender_that_gives_up_takes_nobody_along() -> None:
    valve = Valve(Transport())
    valve.pauseProducing()
    leaving, staying = asyncio.ensure_future(valve.opened()), asyncio.ensure_future(valve.opened())
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert not staying.done()
    valve.resumeProducing()
    await asyncio.wait_for(staying, 5)


async def test_the_end_of_the_connection_lets_everybody_go() -> None:
    valve = Valve(Transport())
    valve.pauseProducing()
    waiting = asyncio.ensure_future(valve.opened())
    await asyncio.sleep(0)
    valve.stopProducing()
    await asyncio.wait_for(waiting, 5)
