from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay import metrics, prometheus
from relay.hub import hub
from tests.relay.test_review import Socket


@pytest.fixture
async def peer() -> Socket:
    socket = Socket("aa11")
    hub.register(socket.link)
    return socket


def samples() -> dict[str, float]:
    """As Prometheus reads them: name{label} to value."""
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(prometheus.exposed().decode())
        for sample in family.samples
    }


async def test_every_figure_is_there_in_prometheus_own_format(peer: Socket) -> None:
    metrics.connected(2)
    metrics.request_ended("peer_gone", 0.2)
    metrics.dropped("unmatched")
    metrics.refused("unauthorized")
    metrics.bytes_passed("in", 1000)
    metrics.queued(0.002)
    metrics.lagged(0.002)
    metrics.replaced("aa11")
    found = samples()
    metrics.disconnected(2)
    assert found["meshnet_relay_connections{2}"] >= 1
    assert found["meshnet_relay_peers"] == 1
    for name in (
        "meshnet_relay_requests_total{peer_gone}",
        "meshnet_relay_dropped_total{unmatched}",
        "meshnet_relay_refused_total{unauthorized}",
        "meshnet_relay_registered_total",
        "meshnet_relay_replaced_total",
        "meshnet_relay_request_seconds_count",
        "meshnet_relay_request_seconds_bucket{0.25}",
        "meshnet_relay_queue_seconds_sum",
        "meshnet_event_loop_lag_seconds_bucket{+Inf}",
    ):
        assert found[name] > 0, name
    assert found["meshnet_relay_bytes_total{in}"] >= 1000
    assert found["process_resident_memory_bytes"] > 1_000_000
    hub.detach(peer.link)


async def test_buckets_are_cumulative() -> None:
    metrics.queued(0.0001)
    found = samples()
    counts = [value for name, value in found.items() if name.startswith("meshnet_relay_queue_seconds_bucket")]
    assert counts == sorted(counts)
    assert counts[-1] == found["meshnet_relay_queue_seconds_count"]


async def test_only_connected_peers_have_a_round_trip_of_their_own(peer: Socket) -> None:
    metrics.rtt("aa11", 0.25)
    metrics.rtt("gone", 0.5)
    assert samples()["meshnet_relay_peer_rtt_seconds{aa11}"] == 0.25
    hub.detach(peer.link)
    assert not any("rtt" in name for name in samples())
