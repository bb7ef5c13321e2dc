"""Which peers are connected. Plain reads, safe from any thread; of this process alone."""

from __future__ import annotations

from relay.hub import hub


def is_present(peer_id: str) -> bool:
    return peer_id in hub.switchboard.peers


def present() -> set[str]:
    return set(hub.switchboard.peers)


def since(peer_id: str) -> float | None:
    """When the peer registered, in Unix seconds; None when it isn't here."""
    link = hub.switchboard.peers.get(peer_id)
    return link.since if link else None
