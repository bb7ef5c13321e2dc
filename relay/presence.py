"""Which peers are connected, to this process or to another of the site. Plain reads, safe from any thread."""

from __future__ import annotations

from relay.directory import directory
from relay.hub import hub


def is_present(peer_id: str) -> bool:
    return peer_id in hub.switchboard.peers or directory.entry(peer_id) is not None


def present() -> set[str]:
    return set(hub.switchboard.peers) | set(directory.entries())


def since(peer_id: str) -> float | None:
    """When the peer registered, in Unix seconds; None when it isn't connected."""
    link = hub.switchboard.peers.get(peer_id)
    if link:
        return link.since
    entry = directory.entry(peer_id)
    return entry.since if entry else None


def where(peer_id: str) -> str | None:
    """The process that holds the peer's socket: "" for this one, else its name; None when it isn't connected."""
    if peer_id in hub.switchboard.peers:
        return ""
    entry = directory.entry(peer_id)
    return directory.processes.get(entry.process) if entry else None
