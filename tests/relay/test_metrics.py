from __future__ import annotations

import pytest

from relay.metrics import Histogram


def test_a_duration_is_counted_by_the_first_bound_it_does_not_exceed() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.2, 1.0, 1.1, 50.0):
        histogram.add(seconds)
    assert histogram.counts == [2, 2, 2]
    assert histogram.sum == pytest.approx(52.4)
