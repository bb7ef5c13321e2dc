"""/healthz and /readyz: whether this process lives, and whether it can do its work. Answered before Django.

What asks is a load balancer or a service manager: by any host name, over plain HTTP, many times a minute. /healthz says
that the event loop turns and nothing else, so a database that is away restarts nobody. /readyz looks at what the work
needs, one look at a time and at most one a second however many ask.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from relay import cluster
from relay.hub import hub
from tracker import readiness
from tracker.background import in_thread

LOOK_S = 3.0  # then what doesn't answer counts as away
KEPT_S = 1.0  # what one look saw is told for so long

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
Problems = dict[str, str | None]  # by what was looked at; None where it is well


class Health:
    """The application, and before it the two paths."""

    def __init__(self, application: Application, clock: Callable[[], float] = time.monotonic) -> None:
        self._application, self._clock, self._began = application, clock, clock()
        self._look: asyncio.Task[Problems] | None = None
        self._looked_at = 0.0

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or path not in ("/healthz", "/readyz"):
            return await self._application(scope, receive, send)
        if scope["method"] not in ("GET", "HEAD"):
            return await _answer(scope, send, 405, {"status": "only GET and HEAD are answered here"})
        if path == "/healthz":
            return await _answer(scope, send, 200, {"status": "alive"})
        status, told = in_words(await self._problems())
        await _answer(scope, send, status, told)

    async def _problems(self) -> Problems:
        look, loop = self._look, asyncio.get_running_loop()
        if look is None or look.get_loop() is not loop or (look.done() and self._clock() - self._looked_at >= KEPT_S):
            self._looked_at = self._clock()
            look = self._look = loop.create_task(self._looked())
        try:
            return await asyncio.wait_for(asyncio.shield(look), LOOK_S)
        except TimeoutError:
            return _here() | {"database": f"it has not answered for {LOOK_S:.0f} s"}

    async def _looked(self) -> Problems:
        up_for = timedelta(seconds=self._clock() - self._began)
        found = await in_thread(readiness.problems, timezone.now(), up_for)
        self._looked_at = self._clock()
        return _here() | found


def _here() -> Problems:
    """What this process knows by itself."""
    problems: Problems = {"process": "it is stopping" if hub.switchboard.draining else None}
    here = cluster.current()
    if here is not None:
        away = "it can't be used; is it up, and does REDIS_URL name it? The site's log has the error"
        problems["redis"] = None if here.joined.is_set() else away
    return problems


def in_words(problems: Problems) -> tuple[int, dict[str, Any]]:
    """HTTP status and body."""
    checks = {
        name: {"ok": True} if not problem else {"ok": False, "problem": problem} for name, problem in problems.items()
    }
    is_ready = not any(problems.values())
    return (200 if is_ready else 503), {"status": "ready" if is_ready else "not ready", "checks": checks}


async def _answer(scope: dict[str, Any], send: Any, status: int, told: dict[str, Any]) -> None:
    body = json.dumps(told).encode() + b"\n"
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
