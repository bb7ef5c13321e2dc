from __future__ import annotations

import pytest

from relay import metrics
from relay.metrics import Histogram


def test_a_duration_is_counted_by_the_first_bound_it_does_not_exceed() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.0, 0.1, 0.2, 1.0, 1.1, 50.0):
        histogram.add(seconds)
    assert histogram.counts == [2, 2, 2]
    assert histogram.sum == pytest.approx(52.4)


def test_sockets_open_now_go_up_and_down_by_version() -> None:
    before = dict(metrics.open_sockets)
    metrics.connected(2)
    metrics.connected(2)
    metrics.disconnected(2)
    assert metrics.open_sockets[2] == before.get(2, 0) + 1
    metrics.disconnected(2)


def test_what_ends_is_counted_by_its_outcome_and_its_time() -> None:
    outcomes, total = metrics.outcomes["answered"], sum(metrics.request_s.counts)
    metrics.request_ended("answered", 0.2)
    assert (metrics.outcomes["answered"], sum(metrics.request_s.counts)) == (outcomes + 1, total + 1)


def test_of_peers_only_a_bounded_number_is_remembered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_PEERS", 2)
    monkeypatch.setattr(metrics, "rtts", {})
    monkeypatch.setattr(metrics, "replacements", {})
    for peer_id in ("a", "b", "a", "c"):
        metrics.rtt(peer_id, 0.01)
        metrics.replaced(peer_id)
    assert list(metrics.rtts) == ["a", "c"]
    assert metrics.replacements == {"a": 2, "c": 1}


def test_round_trips_of_peers_that_have_left_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "rtts", {})
    metrics.rtt("here", 0.01)
    metrics.rtt("gone", 0.02)
    assert metrics.rtts_of({"here"}) == {"here": 0.01}
    assert metrics.rtts == {"here": 0.01}
