"""Work that a process of the site does again and again beside answering: in a thread, begun by a timer of the loop.

It uses the database, so it mustn't run on the loop. A database that is away is told once, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import close_old_connections

logger = logging.getLogger(__name__)


class Repeated:
    """`do` in a thread of its own. `what` it is stands in the log when it fails."""

    def __init__(self, what: str, do: Callable[[], object]) -> None:
        self._what, self._do = what, do
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=what.replace(" ", "-"))
        self._running: asyncio.Future[None] | None = None
        self._is_failing = False

    def start(self, late_s: float = 0.0) -> None:
        """On the loop; unless the last run goes on still."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().run_in_executor(self._thread, self.run)

    def run(self) -> None:
        close_old_connections()  # this thread outlives any connection's welcome
        try:
            self._do()
            self._is_failing = False
        except Exception:
            if not self._is_failing:
                logger.exception("%s failed; it is tried again", self._what)
            self._is_failing = True
        finally:
            close_old_connections()
