"""How the site itself asks a peer: a call in this process, without a socket. On the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from relay import wire
from relay.hub import Edge, hub
from relay.links import Link
from relay.wire import Code

MAX_UNREAD_BYTES = wire.MAX_BODY_BYTES  # of a stream whose reader is slower than the peer
CHUNK_OVERHEAD_BYTES = 256
IN_PLACE = "x-relay-outcome"  # a header of answers that the relay gives in the peer's place: their code


async def call(peer_id: str, request: wire.Request) -> AsyncGenerator[wire.Answer, None]:
    """The peer's answer: a Response; with `stream` then Chunks and an End.

    Failures of the relay are Responses too, instead of an answer or in the middle of one, and are the last item; they
    have the header IN_PLACE.
    Use contextlib.aclosing: leaving early cancels the request at the peer at once.
    """
    unread = _Unread()
    unread.link = hub.attach(wire.TRACKER, "", unread)
    try:
        hub.request(unread.link, peer_id, request)
        while True:
            answer = await unread.next()
            yield answer
            if wire.is_last(answer):
                return
    finally:
        hub.detach(unread.link)


def stops_at() -> float:
    """When this process ends whatever is in flight, by time.monotonic(); infinite until it is told to stop."""
    return hub.stops_at


class _Unread:
    """Answers that the reader hasn't taken yet: the call's end of the switchboard."""

    link: Link[Edge]

    def __init__(self) -> None:
        self._answers: asyncio.Queue[wire.Answer] = asyncio.Queue()
        self._num_bytes = 0

    async def next(self) -> wire.Answer:
        answer = await self._answers.get()
        self._num_bytes -= _size(answer)
        return answer

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        if isinstance(frame, wire.Error):
            frame = _in_place(frame.request_id, frame.code, frame.message)
        assert isinstance(frame, wire.Answer), "the tracker can't be asked"
        self._num_bytes += _size(frame)
        if isinstance(frame, wire.Chunk) and self._num_bytes > MAX_UNREAD_BYTES:
            hub.detach(self.link)  # nothing more comes, and the peer is told to stop
            frame = _in_place(frame.request_id, Code.RATE_LIMITED, "the stream was read too slowly")
        self._answers.put_nowait(frame)

    def close(self, code: Code, message: str) -> None:
        self._answers.put_nowait(_in_place("", code, message))


def _in_place(request_id: str, code: Code, message: str) -> wire.Response:
    return wire.error_response(request_id, code, message, {IN_PLACE: code.value})


def _size(answer: wire.Answer) -> int:
    match answer:
        case wire.Chunk():
            return CHUNK_OVERHEAD_BYTES + len(answer.data)
        case wire.Response():
            return len(answer.body)
        case _:
            return 0
