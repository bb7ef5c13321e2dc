"""Figures over time as a line of an SVG picture, and the same in words. Pure: times and values in, a path out.

A picture ends with the newest sample, not with the moment somebody looks: between two samples nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

WIDTH, HEIGHT = 120.0, 24.0  # of the view box; the page says how large it is drawn
GAP = timedelta(seconds=150)  # samples that are further apart aren't joined: one is missing between them
Point = tuple[datetime, float | None]


@dataclass(frozen=True, slots=True)
class Line:
    path: str  # of an SVG <path>; empty: there is nothing to draw
    end: tuple[float, float] | None  # of its newest point
    now: float | None  # its newest value, where that is no older than the others' newest
    lowest: float
    highest: float
    top: float  # the value at the upper edge; 0 is at the lower one

    def in_words(self, what: str, unit: Callable[[float], str], span: timedelta) -> str:
        """ "round trip: 12 ms now, 8 ms to 40 ms within the last 60 minutes"."""
        if not self.path:
            return f"{what}: nothing measured within the last {_minutes(span)}"
        now = "not measured now" if self.now is None else f"{unit(self.now)} now"
        between = f"{unit(self.lowest)} to {unit(self.highest)}" if self.lowest < self.highest else unit(self.lowest)
        return f"{what}: {now}, {between} within the last {_minutes(span)}"


def line(points: Sequence[Point], end: datetime, span: timedelta, top: float | None = None) -> Line:
    """Of the points from `end - span` until `end`, in order. `top`: for several lines of one picture."""
    within = [(at, value) for at, value in points if value is not None and end - span <= at <= end]
    values = [value for _, value in within]
    if not values:
        return Line("", None, None, 0.0, 0.0, top or 1.0)
    top = top or max(values) or 1.0
    drawn = [((1 - (end - at) / span) * WIDTH, (1 - min(1.0, value / top)) * HEIGHT) for at, value in within]
    now = values[-1] if end - within[-1][0] < GAP else None
    return Line(_path(within, drawn), drawn[-1], now, min(values), max(values), top)


def top_of(*lines: Sequence[Point]) -> float:
    """The upper edge that fits all of them."""
    return max((value for points in lines for _, value in points if value is not None), default=0.0) or 1.0


def newest(points: Iterable[Sequence[Point]], now: datetime) -> datetime:
    """Where pictures end that are shown side by side."""
    return max((at for some in points for at, _ in some[-1:]), default=now)


def _path(within: Sequence[tuple[datetime, float]], drawn: Sequence[tuple[float, float]]) -> str:
    parts, before = [], None
    for (at, _), (x, y) in zip(within, drawn, strict=True):
        is_joined = before is not None and at - before < GAP
        parts.append(f"L{x:.1f} {y:.1f}" if is_joined else f"M{x:.1f} {y:.1f}h0")  # h0: alone, it is a dot
        before = at
    return "".join(parts)


def _minutes(span: timedelta) -> str:
    minutes = round(span / timedelta(minutes=1))
    return f"{minutes} minutes" if minutes % 60 or minutes == 60 else f"{minutes // 60} hours"
