"""What the tracker counts in this process, for Prometheus, beside the relay's figures."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, exposition

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
refusals = Counter(
    "meshnet_refusals",
    "Requests that were answered with an error: of users' programs (api) and of nodes, by its code.",
    ["of", "code"],
    registry=_registry,
)
chats_ended = Counter(
    "meshnet_chats_ended",
    "Chats that this process ran and that ended, by state; those that failed by the code of the error.",
    ["state", "code"],
    registry=_registry,
)
tokens = Counter(
    "meshnet_tokens", "Of chats that ended: their prompts' and their answers'.", ["of"], registry=_registry
)
live_pages = Gauge(
    "meshnet_live_pages",
    "Pages of the dashboard that are open in browsers and are told what changes.",
    registry=_registry,
)


def exposed() -> bytes:
    return exposition.generate_latest(_registry)
