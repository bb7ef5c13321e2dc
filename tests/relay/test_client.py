"""client.call against a peer of the same process; test_doors.py has it inside a served site."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from relay import client, presence, wire
from relay.hub import hub
from relay.wire import Cancel, Chunk, Code, End, Request, Response
from tests.relay.ends import response

ASKED = Request("mine", "POST", "/forward", {"x-a": "1"}, b"ask")


class Peer:
    """Where the relay's socket to a peer would be."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[wire.Frame] = asyncio.Queue()
        self.link = hub.attach("aa11", "m", self)
        hub.register(self.link)

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        self.frames.put_nowait(frame)

    async def asked(self) -> Request:
        frame = await self.frames.get()
        assert isinstance(frame, Request)
        return frame

    def close(self, code: Code, message: str) -> None:
        hub.detach(self.link)

    def answer(self, frame: wire.Answer) -> None:
        hub.answer(self.link, frame)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    hub.detach(peer.link)
    assert not hub.switchboard.flights
    assert not hub.switchboard.links


async def answers(request: Request = ASKED, peer_id: str = "aa11") -> list[wire.Answer]:
    async with aclosing(client.call(peer_id, request)) as stream:
        return [answer async for answer in stream]


async def test_it_asks_as_the_tracker_and_gives_the_answer(peer: Peer) -> None:
    task = asyncio.create_task(answers())
    asked = await peer.asked()
    assert (asked.sender, asked.body, asked.headers) == ("tracker", b"ask", {"x-a": "1"})
    peer.answer(Response(asked.request_id, 200, body=b"out"))
    assert await task == [Response("mine", 200, body=b"out")]


async def test_it_gives_a_stream_piece_by_piece(peer: Peer) -> None:
    async with aclosing(client.call("aa11", ASKED)) as stream:
        first = asyncio.ensure_future(anext(stream))
        asked = await peer.asked()
        peer.answer(Response(asked.request_id, 200, stream=True))
        assert await first == Response("mine", 200, stream=True)
        peer.answer(Chunk(asked.request_id, b"1"))
        assert await anext(stream) == Chunk("mine", b"1")
        peer.answer(End(asked.request_id))
        assert await anext(stream) == End("mine")
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_failure_of_the_relay_is_an_answer_that_says_whose_it_is() -> None:
    [answer] = await answers(peer_id="nobody")
    assert (response(answer).request_id, response(answer).status) == ("mine", 404)
    assert response(answer).headers[client.IN_PLACE] == Code.NOT_FOUND


async def test_a_path_that_no_node_serves_is_refused_here_too(peer: Peer) -> None:
    [answer] = await answers(Request("mine", "GET", "/admin"))
    assert response(answer).status == 403


async def test_a_peer_that_goes_ends_a_stream_with_an_error(peer: Peer) -> None:
    task = asyncio.create_task(answers())
    asked = await peer.asked()
    peer.answer(Response(asked.request_id, 200, stream=True))
    peer.answer(Chunk(asked.request_id, b"1"))
    hub.detach(peer.link)
    kinds = [type(answer) for answer in await task]
    assert kinds == [Response, Chunk, Response]
    assert response(task.result()[-1]).status == 502


async def test_the_deadline_is_kept_by_a_timer(peer: Peer) -> None:
    [answer] = await answers(Request("mine", "POST", "/forward", deadline_ms=50))
    assert response(answer).status == 504
    asked = await peer.asked()
    assert await peer.frames.get() == Cancel(asked.request_id)


async def test_closing_it_cancels_at_the_peer(peer: Peer) -> None:
    stream = client.call("aa11", ASKED)
    first = asyncio.ensure_future(anext(stream))
    asked = await peer.asked()
    peer.answer(Response(asked.request_id, 200, stream=True))
    await first
    await stream.aclose()
    assert await peer.frames.get() == Cancel(asked.request_id)


async def test_cancelling_the_task_that_waits_cancels_at_the_peer(peer: Peer) -> None:
    task = asyncio.create_task(answers())
    asked = await peer.asked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await peer.frames.get() == Cancel(asked.request_id)


async def test_a_stream_read_too_slowly_ends_with_an_error_and_a_cancel(peer: Peer) -> None:
    stream = client.call("aa11", ASKED)
    first = asyncio.ensure_future(anext(stream))
    asked = await peer.asked()
    peer.answer(Response(asked.request_id, 200, stream=True))
    await first
    for _ in range(3):
        peer.answer(Chunk(asked.request_id, b"x" * 400_000))
    assert await peer.frames.get() == Cancel(asked.request_id)
    rest = [answer async for answer in stream]
    assert [type(answer) for answer in rest] == [Chunk, Chunk, Response]
    assert wire.error_of(429, response(rest[-1]).body)[0] == Code.RATE_LIMITED


async def test_presence_follows_the_registration(peer: Peer) -> None:
    assert presence.is_present("aa11")
    assert presence.present() == {"aa11"}
    assert presence.since("aa11") == peer.link.since > 1_700_000_000
    hub.detach(peer.link)
    assert not presence.is_present("aa11")
    assert presence.since("aa11") is None
