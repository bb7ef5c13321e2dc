"""The live socket, /live: a page's script names the page it shows, and is told its changing part whenever that changed.

The client sends {"watch": "<path and query>"}, once. The site sends {"html": …}, {"stale": why}, {} when nothing has
changed for a while, and before it closes {"error": why}. Refusals come after the socket is accepted: a browser shows
no reason otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.http import QueryDict, parse_cookie
from django.http.request import split_domain_port, validate_host
from django.urls import Resolver404, path, resolve

from tracker.dashboard.pages import Ask, Page
from tracker.dashboard.visitors import visitor_of
from tracker.dashboard.watchers import BAD_LOGIN, BAD_REQUEST, FORBIDDEN, Refused, Watcher
from tracker.dashboard.watching import in_own_thread, watching

logger = logging.getLogger(__name__)

FIRST_S = 5.0  # for a socket to say what it watches
MAX_CHARS = 4096  # of what it says

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


async def live_socket(scope: Any, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    try:
        await send({"type": "websocket.accept"})
        try:
            await _serve(scope, receive, send)
        except Refused as refused:
            logger.info("live socket of %s ended: %s", _address(scope), refused.words)
            await send({"type": "websocket.send", "text": json.dumps({"error": refused.words})})
            await send({"type": "websocket.close", "code": refused.code})
    except OSError:
        pass  # it is gone already


async def _serve(scope: Any, receive: Receive, send: Send) -> None:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    check_origin(headers, is_secure=scope.get("scheme") == "wss")
    wanted = await _wanted(receive)
    if wanted is None:
        return
    page, params, args = page_of(wanted)
    session_key = parse_cookie(headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME, "")
    watcher = Watcher(await in_own_thread(visitor_of, session_key), _address(scope))
    if not page.is_open(watcher.visitor.may):
        who_may = (
            (BAD_LOGIN, "log in to see this") if watcher.visitor.is_stranger else (FORBIDDEN, "you may not see this")
        )
        raise Refused(*who_may)
    if not page.is_live:
        raise Refused(BAD_REQUEST, "this page doesn't change by itself")
    watching.begin(watcher, page, Ask.of(watcher.visitor.may, params, args))
    reading = asyncio.create_task(_read(receive))
    writing = asyncio.create_task(_write(watcher, send))
    try:
        done, _ = await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        watching.end(watcher)
        reading.cancel()
        writing.cancel()


async def _wanted(receive: Receive) -> str | None:
    """The path that the socket's first message names; None when it goes before. Raises Refused."""
    try:
        async with asyncio.timeout(FIRST_S):
            message = await receive()
    except TimeoutError:
        raise Refused(BAD_REQUEST, f"nothing was said in {FIRST_S:.0f} s") from None
    if message["type"] == "websocket.disconnect":
        return None
    text = message.get("text") or ""
    try:
        path = json.loads(text)["watch"] if len(text) <= MAX_CHARS else None
    except (ValueError, TypeError, KeyError, RecursionError):  # the last one for "[[[[…"
        path = None
    if not isinstance(path, str) or not path.startswith("/"):
        raise Refused(BAD_REQUEST, 'the first message must be {"watch": "/a/path?and=query"}')
    return path


def page_of(wanted: str) -> tuple[Page, QueryDict, dict[str, Any]]:
    """The page at a path with its query, and the arguments in the path. Raises Refused."""
    path, _, query = wanted.partition("#")[0].partition("?")
    try:
        match = resolve(path)
        page, params = match.func.page, QueryDict(query)  # type: ignore[attr-defined]
    except (Resolver404, AttributeError, SuspiciousOperation):
        raise Refused(BAD_REQUEST, "no live page has this address") from None
    return page, params, match.kwargs


def check_origin(headers: dict[str, str], *, is_secure: bool) -> None:
    """A browser opens sockets for the pages of any site and sends ours its cookies: only our own pages may. Raises
    Refused."""
    host, origin = headers.get("host", ""), headers.get("origin", "")
    ours = {f"{'https' if is_secure else 'http'}://{host}", *settings.CSRF_TRUSTED_ORIGINS}
    if not validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS) or origin not in ours:
        raise Refused(FORBIDDEN, f"a page of {urlsplit(origin).netloc[:100] or 'another site'} may not watch this one")


async def _read(receive: Receive) -> None:
    """Until the socket is gone. It has nothing more to say."""
    if (await receive())["type"] != "websocket.disconnect":
        raise Refused(BAD_REQUEST, "a socket watches one page: open another one")


async def _write(watcher: Watcher, send: Send) -> None:
    while True:
        await send({"type": "websocket.send", "text": await watcher.news()})


def _address(scope: Any) -> str:
    return str((scope.get("client") or ("",))[0])


live_urlpatterns = [path("live", live_socket)]  # type: ignore[arg-type]  # Channels' routes look like Django's
