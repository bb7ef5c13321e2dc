"""Who is connected, as the relay's page of the admin tells it: a row for each peer. Plain values.

Where peers of other processes are and since when stands in the shared presence. How it goes with them only their own
process knows: each tells the others once a second, and what was told so is shown beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.conf import settings

from relay.directory import directory
from relay.hub import Edge, hub
from relay.links import Link

PEERS_PER_NOTE = 200  # some 15 KiB


@dataclass(frozen=True, slots=True)
class Figures:
    num_in_flight: int  # requests it was asked and hasn't answered
    bytes_in: int  # from it
    bytes_out: int
    rtt_s: float | None  # of the last ping; v1 sockets have none
    num_replaced: int  # connections in a row that ended because a newer one registered


@dataclass(frozen=True, slots=True)
class Row:
    peer_id: str
    scope: str
    process: str  # its relay URL
    address: str
    version: int  # of the wire
    since: float  # of its registration, Unix seconds
    figures: Figures | None  # None until the peer's process has told them


def rows() -> list[Row]:
    """Safe from any thread."""
    own = {link.peer_id: _row(link) for link in list(hub.switchboard.peers.values())}
    others = {peer_id: entry for peer_id, entry in directory.entries().items() if peer_id not in own}
    return [
        *own.values(),
        *(
            Row(
                peer_id,
                entry.scope,
                directory.processes.get(entry.process, ""),
                entry.address,
                entry.version,
                entry.since,
                _told.get(entry.process, {}).get(peer_id),
            )
            for peer_id, entry in others.items()
        ),
    ]


def notes(process: str) -> Iterator[dict[str, Any]]:
    """What this process tells the others of its peers."""
    peers = iter(list(hub.switchboard.peers.values()))
    while part := list(islice(peers, PEERS_PER_NOTE)):
        yield {"process": process, "figures": {link.peer_id: _values(link) for link in part}}


def hear(note: dict[str, Any]) -> None:
    """What another process tells. Raises KeyError, TypeError or ValueError for what can't be read."""
    process = str(note["process"])
    figures = {str(peer_id): Figures(*values) for peer_id, values in note["figures"].items()}
    merged = _told.get(process, {}) | figures
    entries = directory.entries()
    _told[process] = {key: it for key, it in merged.items() if key in entries and entries[key].process == process}
    for gone in _told.keys() - directory.processes.keys():
        del _told[gone]


def _row(link: Link[Edge]) -> Row:
    process, figures = settings.RELAY_URL, Figures(*_values(link))
    return Row(link.peer_id, link.scope, process, link.address, link.version, link.since, figures)


def _values(link: Link[Edge]) -> tuple[int, int, int, float | None, int]:
    """In the order of Figures."""
    return len(link.tasks), link.bytes_in, link.bytes_out, link.rtt_s, link.replaced


_told: dict[str, dict[str, Figures]] = {}  # by process id, then by peer_id
