"""How far a node is with fetching its weights: a bar for who watches, lines for the log, figures for the tracker."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from tqdm import tqdm

logger = logging.getLogger(__name__)

LOG_EVERY_S = 15.0


class Stopped(Exception):
    """The node was told to stop while it was loading."""


class Loading:
    """Called with (bytes done, bytes in all) again and again. A context, whose end takes the bar away.

    Raises Stopped out of the work that calls it when the node is told to stop. `news` may be asked by any thread.
    """

    def __init__(
        self, stopping: threading.Event, stream: TextIO | None = None, log_every_s: float = LOG_EVERY_S
    ) -> None:
        self._stopping, self._stream, self._log_every_s = stopping, stream or sys.stderr, log_every_s
        self._seen: tuple[int, int] | None = None
        self._bar: tqdm | None = None
        self._said_at = time.monotonic()

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def check(self, _count: int = 0) -> None:
        """For what waits and has no figures yet."""
        if self._stopping.is_set():
            raise Stopped

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        self.check()
        self._seen = (done_bytes, total_bytes)
        if self._stream.isatty():
            self._draw(done_bytes, total_bytes)
        elif time.monotonic() - self._said_at >= self._log_every_s:
            self._said_at = time.monotonic()
            logger.info("%s", in_words(done_bytes, total_bytes))

    def news(self) -> dict[str, int]:
        """For a heartbeat: nothing before the first figures."""
        if self._seen is None:
            return {}
        return {"done_bytes": self._seen[0], "total_bytes": self._seen[1]}

    def _draw(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=total_bytes,
                initial=done_bytes,
                unit="B",
                unit_scale=True,
                desc="Fetching",
                file=self._stream,
                mininterval=0.2,
            )
        self._bar.total = total_bytes
        self._bar.update(done_bytes - self._bar.n)


def in_words(done_bytes: int, total_bytes: int) -> str:
    share = 100 * done_bytes // total_bytes if total_bytes else 100
    return f"{share} % of the weights are here: {done_bytes / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB"
