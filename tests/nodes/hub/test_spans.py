"""What spans mean is a set of numbers; the functions agree with Python's own sets."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nodes.hub.spans import Span, merged, num_bytes, without

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def numbers(given_spans: Iterable[Span]) -> set[int]:
    return {number for start, end in given_spans for number in range(start, end)}


@given(spans)
def test_merging_keeps_the_bytes_and_leaves_gaps_between_spans(some: list[Span]) -> None:
    result = merged(some)
    assert numbers(result) == numbers(some)
    assert all(left[1] < right[0] for left, right in pairwise(result))
    assert num_bytes(some) == len(numbers(some))


@given(spans, spans)
def test_what_is_left_is_the_difference(some: list[Span], taken: list[Span]) -> None:
    assert numbers(without(some, taken)) == numbers(some) - numbers(taken)


def test_neighbours_become_one() -> None:
    assert merged([(5, 9), (0, 5), (20, 20)]) == [(0, 9)]
