"""What the tracker counts in this process, for Prometheus, beside the relay's figures."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, exposition

_registry = CollectorRegistry(auto_describe=True)

failovers = Counter(
    "meshnet_failovers", "Sessions that went on without a node: a head, a hop, or a move.", ["kind"], registry=_registry
)
reroutes_refused = Counter(
    "meshnet_reroutes_refused",
    "Heads that asked for another route and got none, by the error.",
    ["code"],
    registry=_registry,
)
breaker_openings = Counter("meshnet_breaker_openings", "Nodes left out for a while.", registry=_registry)


def exposed() -> bytes:
    return exposition.generate_latest(_registry)
