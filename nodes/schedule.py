"""Which of the steps that wait are worked next. Pure: no torch, no threads, the clock is handed in.

A part of a prompt runs alone, so that its shape, and with it every bit of its result, is the same whatever else runs.
Decode steps of different sessions run together. While both kinds wait they take turns, one part of a prompt between two
forwards of decode steps. Sessions take turns, too. Steps of one session stay in the order in which they came, and two
of them never run together.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

MAX_ROWS = 32  # sessions in one forward
MAX_BATCH_TOKENS = 128  # their tokens, drafts included: what a part of a prompt may have, so nobody waits longer

# A session that has just been answered comes back in a moment. Waiting for it costs less than a forward of its own.
GAP_SHARE, GATHER_SHARE = 0.05, 0.2  # of the last forward: longest wait for the next step, and for all of them
LEAST_GAP_S, MOST_GATHER_S = 0.0005, 0.01
COMPANY_S = 0.1  # whoever hasn't come back for so long, beside two forwards, isn't waited for


class Waiting(Protocol):
    """What is looked at of a step that waits."""

    @property
    def session(self) -> str: ...
    @property
    def hop(self) -> tuple[int, int]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def is_decode(self) -> bool: ...


ItemT = TypeVar("ItemT", bound=Waiting)


class Schedule(Generic[ItemT]):
    """The steps that wait, a line for each session; lines are in the order in which their turn comes."""

    def __init__(self, max_rows: int = MAX_ROWS, max_tokens: int = MAX_BATCH_TOKENS) -> None:
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._lines: dict[str, deque[ItemT]] = {}
        self._num_waiting = 0
        self._has_decoded = False  # the last forward was of decode steps
        self._company: dict[str, float] = {}  # sessions that were answered and haven't come back: when
        self._first_came, self._last_came = 0.0, 0.0  # or when the last forward ended, if that was later
        self._forward_s = 0.0

    def __len__(self) -> int:
        return self._num_waiting

    def add(self, item: ItemT, now: float) -> None:
        line = self._lines.get(item.session)
        if line is None:
            line = self._lines[item.session] = deque()
        line.append(item)
        if not self._num_waiting:
            self._first_came = now
        self._num_waiting += 1
        self._last_came = now
        self._company.pop(item.session, None)

    def next(self) -> list[ItemT]:
        """What runs now, in one forward; empty when nothing waits."""
        prefill, decodes = self._candidates()
        self._has_decoded = bool(decodes) and not (prefill and self._has_decoded)
        chosen = decodes if self._has_decoded else [prefill] if prefill else []
        for item in chosen:
            self._take(item.session)
        return chosen

    def ran(self, items: list[ItemT], now: float, took_s: float) -> None:
        """After their forward: who decodes may be back in a moment."""
        self._first_came = self._last_came = now
        if items[0].is_decode:
            self._forward_s = took_s
            for item in items:
                if item.session not in self._lines:
                    self._company[item.session] = now

    def forget(self, session: str) -> None:
        """It won't come back."""
        self._company.pop(session, None)

    def patience_s(self, now: float) -> float:
        """How much longer to wait for company before `next`: nothing, unless decode steps wait alone and other
        sessions were answered a moment ago. A session that is alone never waits."""
        if not self._company or not self._num_waiting or self._is_full():
            return 0.0
        self._drop_lost_company(now)
        if not self._company:
            return 0.0
        gap_s = max(LEAST_GAP_S, GAP_SHARE * self._forward_s)
        gather_s = max(LEAST_GAP_S, min(MOST_GATHER_S, GATHER_SHARE * self._forward_s))
        return min(self._last_came + gap_s, self._first_came + gather_s) - now

    def drain(self) -> list[ItemT]:
        """Everything that waits; nothing does any more."""
        items = [item for line in self._lines.values() for item in line]
        self._lines.clear()
        self._num_waiting = 0
        return items

    def _candidates(self) -> tuple[ItemT | None, list[ItemT]]:
        """The prompt's part whose turn it is, and the decode steps that could run together: the first decides which
        layers, the others of those join it while there is room."""
        prefill: ItemT | None = None
        decodes: list[ItemT] = []
        num_tokens = 0
        for line in self._lines.values():
            first = line[0]
            if not first.is_decode:
                prefill = prefill or first
            elif not decodes or (
                first.hop == decodes[0].hop
                and len(decodes) < self._max_rows
                and num_tokens + first.num_tokens <= self._max_tokens
            ):
                decodes.append(first)
                num_tokens += first.num_tokens
        return prefill, decodes

    def _take(self, session: str) -> None:
        line = self._lines.pop(session)
        line.popleft()
        self._num_waiting -= 1
        if line:
            self._lines[session] = line  # behind all others

    def _is_full(self) -> bool:
        """There is enough to do: a prompt's part, or as many decode steps as fit."""
        return len(self._lines) >= self._max_rows or any(not line[0].is_decode for line in self._lines.values())

    def _drop_lost_company(self, now: float) -> None:
        lost = now - COMPANY_S - 2 * self._forward_s
        for session in [session for session, answered in self._company.items() if answered < lost]:
            del self._company[session]
