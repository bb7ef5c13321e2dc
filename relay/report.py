"""Who is connected, as the relay's page of the admin tells it: a row for each peer of this process. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from relay.hub import Edge, hub
from relay.links import Link


@dataclass(frozen=True, slots=True)
class Row:
    """What only the peer's own process knows is None in the row of another one's peer."""

    peer_id: str
    scope: str
    process: str  # its relay URL
    address: str
    version: int  # of the wire
    since: float  # of its registration, Unix seconds
    num_in_flight: int | None = None  # requests it was asked and hasn't answered
    bytes_in: int | None = None  # from it
    bytes_out: int | None = None
    rtt_s: float | None = None  # of the last ping; v1 sockets have none
    num_replaced: int | None = None  # connections in a row that ended because a newer one registered


def rows() -> list[Row]:
    """Safe from any thread."""
    return [_row(link) for link in list(hub.switchboard.peers.values())]


def _row(link: Link[Edge]) -> Row:
    return Row(
        link.peer_id,
        link.scope,
        settings.RELAY_URL,
        address=link.address,
        version=link.version,
        since=link.since,
        num_in_flight=len(link.tasks),
        bytes_in=link.bytes_in,
        bytes_out=link.bytes_out,
        rtt_s=link.rtt_s,
        num_replaced=link.replaced,
    )
