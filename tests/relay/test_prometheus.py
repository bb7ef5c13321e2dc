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
    metrics.open_sockets[2] += 1
    metrics.outcomes["peer_gone"] += 1
    metrics.drops["unmatched"] += 1
    metrics.refusals["unauthorized"] += 1
    metrics.sockets["replaced"] += 1
    metrics.num_bytes["in"] += 1000
    metrics.request_s.add(0.2)
    metrics.queue_s.add(0.002)
    metrics.loop_lag_s.add(0.002)
    found = samples()
    metrics.open_sockets[2] -= 1
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
    metrics.queue_s.add(0.0001)
    found = samples()
    counts = [value for name, value in found.items() if name.startswith("meshnet_relay_queue_seconds_bucket")]
    assert counts == sorted(counts)
    assert counts[-1] == found["meshnet_relay_queue_seconds_count"]


async def test_only_connected_peers_have_a_round_trip_of_their_own(peer: Socket) -> None:
    assert not any("rtt" in name for name in samples())  # not yet
    peer.link.credit.rtt_s = 0.25
    assert samples()["meshnet_relay_peer_rtt_seconds{aa11}"] == 0.25
    hub.detach(peer.link)
    assert not any("rtt" in name for name in samples())
