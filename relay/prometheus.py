"""The relay's figures as Prometheus reads them. Read at each scrape, from relay/metrics.py and the switchboard."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from relay import metrics
from relay.hub import hub
from relay.metrics import Histogram

CONTENT_TYPE = exposition.CONTENT_TYPE_PLAIN_0_0_4


class RelayCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        switchboard = hub.switchboard
        yield _gauges("meshnet_relay_connections", "Sockets open now.", "version", metrics.open_sockets)
        yield _gauge("meshnet_relay_peers", "Peers that can be asked now.", len(switchboard.peers))
        yield _gauge("meshnet_relay_requests_in_flight", "Requests without an end yet.", len(switchboard.flights))
        yield _counters("meshnet_relay_requests", "Requests that ended.", "outcome", metrics.outcomes)
        yield _counters("meshnet_relay_dropped", "Messages thrown away.", "reason", metrics.drops)
        yield _counters("meshnet_relay_refused", "Sockets turned away.", "code", metrics.refusals)
        yield _counter("meshnet_relay_registered", "Registrations of peers.", metrics.sockets["registered"])
        yield _counter("meshnet_relay_replaced", "Taken over by a newer one.", metrics.sockets["replaced"])
        yield _counter("meshnet_relay_overflowed", "Sockets that read too slowly.", metrics.sockets["overflowed"])
        yield _counters("meshnet_relay_bytes", "Bytes of messages.", "direction", metrics.num_bytes)
        yield _histogram("meshnet_relay_request_seconds", "From its being passed on to its end.", metrics.request_s)
        yield _histogram("meshnet_relay_queue_seconds", "A message's wait for its socket.", metrics.queue_s)
        rtts = {link.peer_id: link.rtt_s for link in switchboard.peers.values() if link.rtt_s is not None}
        yield _gauges("meshnet_relay_peer_rtt_seconds", "The last ping's way there and back.", "peer_id", rtts)
        yield _histogram("meshnet_event_loop_lag_seconds", "How late the event loop was.", metrics.loop_lag_s)


def exposed() -> bytes:
    """On the event loop's thread, as all that writes the figures."""
    return exposition.generate_latest(_registry)


def _registry_of_this_process() -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=True)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)  # resident memory, open files, CPU time, garbage collections
    registry.register(RelayCollector())
    return registry


def _gauge(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(name, says, value=value)


def _counter(name: str, says: str, value: float) -> Metric:
    return CounterMetricFamily(name, says, value=value)


def _gauges(name: str, says: str, label: str, values: dict[str, float] | dict[int, int]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family


def _counters(name: str, says: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, says, labels=[label])
    for key, value in values.items():
        family.add_metric([str(key)], value)
    return family


def _histogram(name: str, says: str, histogram: Histogram) -> Metric:
    buckets, total = [], 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return HistogramMetricFamily(name, says, buckets=buckets, sum_value=histogram.sum)


_registry = _registry_of_this_process()
