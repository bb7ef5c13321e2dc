"""Fakes at the tracker's edges: a head that answers what a test says, a peer's socket, a node's small HTTP server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from relay import wire
from relay.hub import hub
from relay.links import Link


def sse(*events: Any) -> bytes:
    """Events of a head, JSON unless they are text already."""
    return b"".join((one if isinstance(one, str) else f"data: {json.dumps(one)}").encode() + b"\n\n" for one in events)


def said(text: str, ids: list[int], finish_reason: str | None = None, **own: Any) -> dict[str, Any]:
    """One event of a chat's text."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return {"choices": [choice], "meshnet": {"ids": ids, "position": 0} | own}


def done(
    hops: list[dict[str, Any]] | None = None, prompt_tokens: int = 5, completion_tokens: int = 2
) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": 0}
    return {"meshnet": {"done": True, "usage": usage, "hops": hops or []}}


HELLO = sse(said("Hel", [11], prompt_ids=[1, 2, 3, 4, 5]), said("lo", [12], "stop"), done(), "data: [DONE]")


class FakeHead:
    """Answers with a Response and chunks. An item may be an Event to wait for: a test decides when the head goes on."""

    def __init__(self, *items: bytes | asyncio.Event | wire.Response, status: int = 200, body: bytes = b"") -> None:
        self.items, self.status, self.body = items, status, body
        self.requests: list[wire.Request] = []
        self.is_closed = False
        self.was_read_to_the_end = False

    async def __call__(self, request: wire.Request) -> AsyncGenerator[wire.Answer, None]:
        self.requests.append(request)
        try:
            yield wire.Response(request.request_id, self.status, {}, self.body, stream=self.status == 200)
            for item in self.items if self.status == 200 else ():
                if isinstance(item, asyncio.Event):
                    await item.wait()
                elif isinstance(item, wire.Response):
                    yield item
                    return
                else:
                    yield wire.Chunk(request.request_id, item)
            yield wire.End(request.request_id)
            self.was_read_to_the_end = True
        finally:
            self.is_closed = True

    @property
    def asked(self) -> dict[str, Any]:
        """The body of the last request."""
        fields: dict[str, Any] = json.loads(self.requests[-1].body)
        return fields


class PeerSocket:
    """A node's socket on the relay, of which only the far side is made up."""

    def __init__(self, peer_id: str, scope: str) -> None:
        self.link: Link[Any] = hub.attach(peer_id, scope, self)
        hub.register(self.link)
        self.frames: list[wire.Frame] = []
        self.is_asked = asyncio.Event()
        self.is_cancelled = asyncio.Event()
        self.reply: Callable[[wire.Request], list[wire.Answer]] = lambda request: []

    def deliver(self, frame: wire.Frame, sender: str = "") -> None:
        self.frames.append(frame)
        if isinstance(frame, wire.Cancel):
            self.is_cancelled.set()
        if isinstance(frame, wire.Request):
            self.is_asked.set()
            for answer in self.reply(frame):
                hub.answer(self.link, answer)

    def close(self, code: wire.Code, message: str) -> None:
        hub.detach(self.link)

    def leave(self) -> None:
        hub.detach(self.link)


def streams(*pieces: bytes) -> Callable[[wire.Request], list[wire.Answer]]:
    """A reply of a PeerSocket: a whole stream at once."""
    return lambda request: [
        wire.Response(request.request_id, 200, {"content-type": "text/event-stream"}, stream=True),
        *(wire.Chunk(request.request_id, piece) for piece in pieces),
        wire.End(request.request_id),
    ]


Answering = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def http_server(answer: Answering) -> Iterator[str]:
    """The URL of a server on a free port whose GET and POST are answered by `answer`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in ({"content-length": str(len(body))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)
