"""This process among the others of its site: joins them over Redis, keeps its lease, tells of its peers.

Without settings.REDIS_URL nothing here ever runs. With it, one task does everything, begun by the first connection or
request that the event loop sees, or by `manage.py serve` itself. Without Redis for a while, what is local goes on, what
isn't fails at once; when it is back everything is said again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from django.conf import settings

from relay import auth, report
from relay.announcements import Announcements
from relay.bus import Bus, BusLost
from relay.directory import Entry, directory
from relay.hub import Edge, hub
from relay.leases import OPERATION_S, REFRESH_S, Leases, LeasesLost
from relay.links import Link
from relay.remote import FRAME, Remotes
from relay.wire import Code, code_of

logger = logging.getLogger(__name__)

FIRST_RETRY_S, MAX_RETRY_S = 0.1, 0.8  # below a heartbeat: so soon everything is back when Redis is
JOIN_WAIT_S = 2.0  # how long the first request waits to know the others' peers
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


class Cluster:
    """`url`: Redis. `where`: how others call this process, its relay's address."""

    def __init__(self, url: str, where: str) -> None:
        self.process, self._where = secrets.token_hex(8), where
        self.joined = asyncio.Event()
        self.tried = asyncio.Event()
        self._leases = Leases(url, self.process, where)
        self._remotes = Remotes(hub, directory)
        self._bus = self._remotes.bus = Bus(url, self.process, self._hear, self._remotes.failed)
        self._announcements = Announcements(
            self._leases, directory, lambda: hub.switchboard.peers, self._tell, _replaced
        )
        self._news = asyncio.Event()  # for the shared presence
        self._lost_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._task = self.loop.create_task(self._run())

    @property
    def has_twin(self) -> bool:
        """Whether peers that leave here find another process at the same address."""
        return directory.has_twin(self.process, self._where)

    def withdraw(self) -> None:
        """The process is about to stop: from here on nobody looks for peers here."""
        self._announcements.withdraw()
        self._news.set()

    async def leave(self) -> None:
        """The last word, when nothing is in flight any more."""
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=OPERATION_S)
        self._announcements.withdraw()
        try:
            await self._announcements.settle()
            await self._leases.give_up()
        except LeasesLost:
            pass  # the lease ends by itself
        await self._leases.close()

    def expel_elsewhere(self, peer_id: str, code: Code, why: str) -> None:
        """From any thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._tell, {"expel": peer_id, "code": code, "why": why})

    async def _run(self) -> None:
        hub.remote = self._remotes.find
        hub.on_registered.append(self._changed)
        hub.on_detached.append(self._changed)
        auth.heralds.append(self.expel_elsewhere)
        for link in hub.switchboard.peers.values():
            self._changed(link)
        try:
            await self._keep_together()
        finally:
            hub.remote = None
            hub.on_registered.remove(self._changed)
            hub.on_detached.remove(self._changed)
            auth.heralds.remove(self.expel_elsewhere)
            directory.forget_all()

    async def _keep_together(self) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            try:
                await self._together()
            except (LeasesLost, BusLost) as error:
                retry_s = FIRST_RETRY_S if self.joined.is_set() else min(2 * retry_s, MAX_RETRY_S)
                self._lost(str(error))
            except Exception:
                logger.exception("the work between the processes of this site failed; it begins again")
                retry_s = MAX_RETRY_S
                self._lost("an error of ours")
            await asyncio.sleep(retry_s)

    async def _together(self) -> None:
        """One life of the connection to Redis. Raises why it ended."""
        opened = asyncio.Event()
        tasks = [asyncio.create_task(self._bus.run(opened.set)), asyncio.create_task(self._keep_presence(opened))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _keep_presence(self, opened: asyncio.Event) -> None:
        """The lease first: others must know the process before it speaks."""
        await self._refresh()
        await opened.wait()
        self._is_back()
        while True:
            until = time.monotonic() + REFRESH_S
            while (left_s := until - time.monotonic()) > 0:
                self._news.clear()
                await self._announcements.settle()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._news.wait()
            await self._announcements.settle()
            await self._refresh()
            for note in report.notes(self.process):
                self._tell(note)

    async def _refresh(self) -> None:
        self._bus.heard.clear()
        was_known, snapshot = await self._leases.refresh(directory.change)
        directory.take(snapshot)
        if not was_known and self.joined.is_set():
            self._bus.fail_all("the lease of this process had ended")
        for process in set(self._bus.pairs) - set(snapshot.processes) - self._bus.heard:
            self._bus.drop(process)
            self._remotes.gone(process)
        for peer_id, entry in (snapshot.peers or {}).items():
            if entry.process != self.process:
                self._announcements.heard_of(peer_id, entry)
        await self._announcements.compare(snapshot)
        self._remotes.sweep()

    def _is_back(self) -> None:
        what = f"{len(directory.processes.keys() - {self.process})} other processes of this site"
        if self._lost_at is None:
            logger.info("Joined over Redis: %s", what)
        else:
            logger.info("Redis is back after %.1f s: %s", time.monotonic() - self._lost_at, what)
        self._lost_at = None
        self.joined.set()
        self.tried.set()

    def _lost(self, why: str) -> None:
        self.joined.clear()
        self.tried.set()
        directory.forget_all()
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            logger.warning("Redis can't be used (%s): peers of other processes can't be asked until it is back", why)

    def _changed(self, link: Link[Edge]) -> None:
        self._announcements.changed(link.peer_id)
        self._news.set()

    def _hear(self, process: str, item: bytes) -> None:
        if item[:1] == FRAME:
            return self._remotes.hear(process, item)
        try:
            self._noted(json.loads(item))
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("a note of another process can't be read (%r); do all run the same version?", error)

    def _noted(self, note: dict[str, Any]) -> None:
        if "here" in note:
            entry = Entry.from_json(note["entry"])
            directory.heard_of(note["here"], entry)
            self._announcements.heard_of(note["here"], entry)
        elif "gone" in note:
            directory.heard_gone(note["gone"], note["generation"])
        elif "figures" in note:
            report.hear(note)
        elif "expel" in note:
            auth.expel_here(note["expel"], code_of(note["code"]), str(note["why"]))

    def _tell(self, note: dict[str, Any]) -> None:
        """Best effort: the next snapshot says the same of presence, and credentials are looked at again anyway."""
        item = json.dumps(note).encode()
        for process in directory.processes:
            if process != self.process:
                self._bus.send(process, item)


class InCluster:
    """An application whose process has joined before it is first asked anything, or has tried to."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        cluster = start()
        if cluster and not cluster.tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(JOIN_WAIT_S):
                    await cluster.tried.wait()
        await self._application(scope, receive, send)


def start() -> Cluster | None:
    """This event loop's part in the cluster; None where there is no other process. Harmless to call again."""
    global _cluster
    if not getattr(settings, "REDIS_URL", ""):
        return None
    if _cluster is None or _cluster.loop is not asyncio.get_running_loop():
        _cluster = Cluster(settings.REDIS_URL, settings.RELAY_URL)
        _cluster.start()
    return _cluster


def current() -> Cluster | None:
    return _cluster


def _replaced(link: Link[Edge]) -> None:
    link.edge.close(Code.CONFLICT, f"a newer connection registered as {link.peer_id}")


_cluster: Cluster | None = None
