"""What people ask a page to reckon: one at a time in a process, with rests, and not for long; chats don't notice it.

Python runs one thread at a time: a page that reckons for long would hold up the tokens of every chat in its process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MOST_S = 0.8  # of the processor
UNRESTED_S = 0.05  # what is quick needs no rest
WAIT_S = 2.0  # for who came first

_turn = threading.Lock()


class Busy(Exception):
    """Others reckon; what they wait for takes a moment each."""


@dataclass
class Effort:
    """Asked before each step whether there may be another; it rests then for as long as the last one took."""

    most_s: float
    spent_s: float = 0.0
    began: float = 0.0

    def may_go_on(self) -> bool:
        step = time.thread_time() - self.began - self.spent_s
        self.spent_s += step
        if self.spent_s > UNRESTED_S:
            time.sleep(step)
        return self.spent_s < self.most_s


@contextmanager
def reckoning(most_s: float = MOST_S, wait_s: float = WAIT_S) -> Iterator[Effort]:
    """Raises Busy where it isn't one's turn in time."""
    if not _turn.acquire(timeout=wait_s):
        raise Busy
    try:
        yield Effort(most_s, began=time.thread_time())
    finally:
        _turn.release()
