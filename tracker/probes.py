"""Asks nodes how they are: one that a head accused, and those that were left out and may come back. Async.

A node answers /health whatever it computes, so one that doesn't answer within a few seconds is stopped or cut off.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
from collections.abc import Coroutine
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from django.utils import timezone

from relay import presence, wire
from tracker import accusations
from tracker.background import in_thread
from tracker.heads import HeadCall, by_http, through_relay
from tracker.models import Lease, Node

logger = logging.getLogger(__name__)

PERIOD_S = 2.0  # between two looks for nodes that may come back
LEASE = timedelta(seconds=3 * PERIOD_S)  # of the process that does it
DEADLINE_S = 5.0  # a node whose machine is overloaded answers late
MAX_AT_ONCE = 50
FAILURES = frozenset({500, 502, 504})  # a busy relay says nothing about a node


async def failure_of(call: HeadCall, deadline_s: float = DEADLINE_S) -> str | None:
    """Why a node isn't well, in words; None when it answers."""
    request = wire.Request(
        request_id=secrets.token_hex(16),
        method="GET",
        path="/health",
        headers={},
        sender=wire.TRACKER,
        deadline_ms=int(deadline_s * 1000),
    )
    try:
        async with asyncio.timeout(deadline_s), aclosing(call(request)) as answers:
            answer = await anext(answers, None)
    except TimeoutError:
        return f"it didn't answer within {deadline_s:g} s"
    if not isinstance(answer, wire.Response):
        return "it gave no answer"
    return wire.error_of(answer.status, answer.body)[1] if answer.status in FAILURES else None


class Prober:
    """The probes of one process: a node is asked once at a time."""

    def __init__(self) -> None:
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._holder = secrets.token_hex(8)

    def look_at(self, node: Node) -> None:
        """A head says that it failed: whether the site sees that too is found out beside all else."""
        if node.pk not in self._asking and len(self._asking) < MAX_AT_ONCE:
            task = self._asking[node.pk] = _beside(_check(node))
            task.add_done_callback(lambda _: self._asking.pop(node.pk, None))

    def is_asking(self, node: Node) -> bool:
        """It was accused, and hasn't answered yet. From any thread."""
        return node.pk in self._asking

    def start(self, late_s: float = 0.0) -> None:
        """Looks for nodes whose time without sessions is over, in one process at a time."""
        if self._looking is None or self._looking.done():
            self._looking = _beside(self._look_for_recovered())

    async def idle(self) -> None:
        """Until all that were begun have ended."""
        while tasks := [task for task in (*self._asking.values(), self._looking) if task and not task.done()]:
            await asyncio.wait(tasks)

    async def _look_for_recovered(self) -> None:
        for node in await in_thread(_half_open, self._holder):
            self.look_at(node)


prober = Prober()


def _beside(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """As a task of its own, with nothing of the request's context."""

    async def logged() -> None:
        try:
            await work
        except Exception:
            logger.exception("a probe of a node failed")

    return asyncio.get_running_loop().create_task(logged(), context=contextvars.Context())


async def _check(node: Node) -> None:
    call = _way_to(node)
    if call is None:
        return
    failure = await failure_of(call)
    if failure is None:
        await in_thread(accusations.is_well, node, timezone.now())
    else:
        await in_thread(accusations.site_saw, node.peer_id, f"asked how it is, {failure}", timezone.now())


def _way_to(node: Node) -> HeadCall | None:
    """None where there is none: it is offline, and welcome at once when it is back."""
    if node.uses_relay and presence.is_present(node.peer_id):
        return through_relay(node.peer_id)
    return by_http(node.dial_url) if node.is_endpoint_proved(timezone.now()) else None


def _half_open(holder: str) -> list[Node]:
    now = timezone.now()
    over = Node.objects.filter(breaker_until__lte=now)
    nodes = list(over.online(now, presence.present())[:MAX_AT_ONCE])
    return nodes if nodes and Lease.take("probes", holder, now, LEASE) else []
