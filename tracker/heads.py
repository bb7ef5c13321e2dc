"""How the head of a route is asked: through the relay, or by HTTP at the address its endpoint proved. Async.

Both give the same: an async generator of a Response and, where it streams, Chunks and an End. Failures come as error
Responses too, the last item. Closing the generator cancels the request at the head.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import httpx2

from relay import client, wire
from relay.wire import Code

HeadCall = Callable[[wire.Request], AsyncGenerator[wire.Answer, None]]

CONNECT_S = 5.0
PIECE_BYTES = 64 * 1024


def through_relay(peer_id: str) -> HeadCall:
    return lambda request: client.call(peer_id, request)


def by_http(url: str) -> HeadCall:
    """`url`: scheme, checked address and port. Never follows a redirect or a proxy of the environment."""
    return lambda request: _ask(url, request)


async def _ask(url: str, request: wire.Request) -> AsyncGenerator[wire.Answer, None]:
    headers = dict(request.headers) | {"accept-encoding": "identity"}
    try:
        async with (
            _http_client() as http,
            http.stream(request.method, url + request.path, headers=headers, content=request.body) as answer,
            aclosing(_answers(request.request_id, answer)) as answers,
        ):
            async for item in answers:
                yield item
    except httpx2.HTTPError as error:
        cause = str(error) or type(error).__name__
        yield wire.error_response(request.request_id, Code.PEER_GONE, f"the head can't be asked: {cause}")


def _http_client() -> httpx2.AsyncClient:
    timeout = httpx2.Timeout(None, connect=CONNECT_S)  # how long a head may be silent is the proxy's matter
    # `verify`: endpoints are plain http, and reading the CA file costs 35 ms
    return httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=timeout, verify=False)


async def _answers(request_id: str, answer: httpx2.Response) -> AsyncGenerator[wire.Answer, None]:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if not headers.get("content-type", "").startswith("text/event-stream"):
        body = b""
        async for piece in answer.aiter_raw(PIECE_BYTES):
            body += piece
            if len(body) > wire.MAX_BODY_BYTES:
                yield wire.error_response(request_id, Code.TOO_LARGE, "the head's answer is too large")
                return
        yield wire.Response(request_id, answer.status_code, headers, body)
        return
    yield wire.Response(request_id, answer.status_code, headers, stream=True)
    async for piece in answer.aiter_raw():
        yield wire.Chunk(request_id, piece)
    yield wire.End(request_id)
