"""Who watches which page in this process: a page is rendered once for all who see the same, and told when it changed.

On the event loop's thread. What needs the database runs in one thread of its own, one thing after another, so that
looking at the mesh never holds up the mesh: a page that takes long to make is looked at less often. Everything is
bounded: watchers in all and of one visitor, one thread, one message that waits for each watcher (the newest wins).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

from django.db import close_old_connections
from django.http import Http404
from django.utils import timezone

from tracker import figures
from tracker.dashboard.pages import Ask, Page
from tracker.dashboard.visitors import ended, visitor_of
from tracker.dashboard.watchers import BAD_LOGIN, FORBIDDEN, NOT_FOUND, NOTHING_NEW, TRY_LATER, Refused, Watcher

logger = logging.getLogger(__name__)

MAX_WATCHERS = 500  # in this process
MAX_OF_ONE = 30  # pages that one login, or one address without, has open here
REST = 9  # a page rests for so many times as long as its making took: it gets a tenth of the thread's time
REST_OF_ALL = 4  # and for so many times as long as that of all: together they get a quarter
SAYS_S = 10.0  # so often a watcher hears that nothing has changed
CHECK_S = 2.0  # so often logins are looked up
RECHECK_S = 30.0  # so often permissions are

UNMADE = "This page can't be made now; the site's log says why. It is tried again."

Result = TypeVar("Result")
Given = ParamSpec("Given")


@dataclass(eq=False)
class View:
    """A page as some see it."""

    page: Page
    ask: Ask
    watchers: set[Watcher] = field(default_factory=set)
    html: str = ""  # as they know it
    message: str = ""  # that says so, written once for all
    said: float = 0.0  # when they were told something last
    is_failing: bool = False

    def tell(self, message: str) -> None:
        self.said = _clock()
        for watcher in self.watchers:
            watcher.tell(message)


class Watching:
    def __init__(self, run: Callable[..., Any]) -> None:
        """`run` awaits a function in a thread that may use the database."""
        self._run = run
        self._views: dict[tuple[Page, Ask], View] = {}
        self._checks: asyncio.Task[None] | None = None
        self._looks: set[asyncio.Task[None]] = set()

    def begin(self, watcher: Watcher, page: Page, ask: Ask) -> None:
        """It is told at once, and then whenever something has changed. Raises Refused."""
        watchers = list(self.watchers())
        if len(watchers) >= MAX_WATCHERS:
            raise Refused(TRY_LATER, "too many pages are open on this site now")
        if sum(other.whose == watcher.whose for other in watchers) >= MAX_OF_ONE:
            raise Refused(TRY_LATER, f"you have {MAX_OF_ONE} pages open already: close some")
        watcher.checked = _clock()
        if view := self._views.get((page, ask)):
            view.watchers.add(watcher)
            if view.message:
                watcher.tell(view.message)
        else:
            view = self._views[page, ask] = View(page, ask, {watcher})
            self._start(self._look(view))
        if self._checks is None or self._checks.done():
            self._checks = self._start(self._check())
        figures.live_pages.set(len(watchers) + 1)

    def end(self, watcher: Watcher) -> None:
        for view in self._views.values():
            view.watchers.discard(watcher)
        figures.live_pages.set(sum(1 for _ in self.watchers()))

    def watchers(self) -> Iterator[Watcher]:
        return (watcher for view in self._views.values() for watcher in view.watchers)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._looks.add(task)  # the loop itself keeps tasks by weak references only
        task.add_done_callback(self._looks.discard)
        return task

    async def _look(self, view: View) -> None:
        """Again and again, while somebody watches."""
        try:
            while view.watchers:
                began = _clock()
                await self._look_once(view)
                times = max(REST, REST_OF_ALL * len(self._views))
                await self._rest(view, max(view.page.every_s, times * (_clock() - began)))
        finally:
            del self._views[view.page, view.ask]
            for watcher in view.watchers:
                watcher.end(TRY_LATER, "the site stops looking at this page")

    async def _look_once(self, view: View) -> None:
        try:
            html = await self._run(view.page.live, replace(view.ask, now=timezone.now()))
        except Http404:
            for watcher in view.watchers:
                watcher.end(NOT_FOUND, "what this page showed is gone")
            view.watchers = set()
            return
        except Exception:
            if not view.is_failing:
                logger.exception("page %s can't be made; it is tried again", view.page.name)
            view.is_failing, view.html, view.message = True, "", json.dumps({"stale": UNMADE})
            view.tell(view.message)
            return
        view.is_failing = False
        if html != view.html:
            view.html, view.message = html, json.dumps({"html": html})
            view.tell(view.message)
        elif _clock() - view.said >= SAYS_S:
            view.tell(NOTHING_NEW)

    async def _rest(self, view: View, seconds: float) -> None:
        """However long it is: whoever hears nothing takes the site for dead."""
        until = _clock() + seconds
        while view.watchers and (left := until - _clock()) > 0:
            await asyncio.sleep(min(left, SAYS_S))
            if left > SAYS_S:
                view.tell(NOTHING_NEW)

    async def _check(self) -> None:
        """Ends who has logged out, and who may no longer see what he watches. While somebody watches."""
        while watchers := [watcher for watcher in self.watchers() if not watcher.visitor.is_stranger]:
            await asyncio.sleep(CHECK_S)
            try:
                await self._check_once(watchers)
            except Exception:
                logger.exception("logins of those who watch can't be looked up; it is tried again")

    async def _check_once(self, watchers: list[Watcher]) -> None:
        over = await self._run(ended, {watcher.visitor.session_key for watcher in watchers})
        due = {watcher.visitor for watcher in watchers if _clock() - watcher.checked >= RECHECK_S}
        now = {visitor: await self._run(visitor_of, visitor.session_key) for visitor in due}
        for watcher in watchers:
            visitor = now.get(watcher.visitor, watcher.visitor)
            if watcher.visitor in now:
                watcher.checked = _clock()
            if watcher.visitor.session_key in over or visitor.is_stranger:
                watcher.end(BAD_LOGIN, "you are logged out")
            elif visitor.may != watcher.visitor.may:
                watcher.end(FORBIDDEN, "what you may do here has changed")


_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live-pages")


async def in_own_thread(function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    def work() -> Result:
        close_old_connections()  # this thread outlives any connection's welcome
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(_thread, work)


def _clock() -> float:
    return asyncio.get_running_loop().time()


watching = Watching(in_own_thread)
