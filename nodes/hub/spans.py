"""Sets of bytes of a file, as sorted (start, end) pairs that neither touch nor overlap. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[int, int]  # half-open


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same bytes with neighbours joined; empty ones vanish."""
    joined: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def without(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """The bytes of `spans` that aren't in `taken`."""
    holes = merged(taken)
    return merged(piece for span in merged(spans) for piece in _cut(span, holes))


def _cut(span: Span, holes: Sequence[Span]) -> Iterable[Span]:
    at, end = span
    for hole_start, hole_end in holes:
        if hole_end <= at or hole_start >= end:
            continue
        if hole_start > at:
            yield at, hole_start
        at = hole_end
    if at < end:
        yield at, end


def num_bytes(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in merged(spans))
