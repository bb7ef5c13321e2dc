"""Keeps what Redis says of this process' peers equal to what is so.

It compares instead of counting events: what is connected here, what was written last, what the snapshot says. So a lost
answer, an outage or a sweep by others leaves nothing to make up for; the next comparison finds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relay.directory import Directory, Entry, Snapshot
from relay.hub import Edge
from relay.leases import REFRESH_S, Leases
from relay.links import Link

LATE_S = 2 * REFRESH_S  # a registration announced later than this may not be the newest any more


@dataclass(frozen=True, slots=True)
class Written:
    link: Link[Edge]
    stored: str
    generation: int


class Announcements:
    """`peers`: what is connected here. `tell` takes news to other processes; `replaced` ends a link that lost."""

    def __init__(
        self,
        leases: Leases,
        directory: Directory,
        peers: Callable[[], dict[str, Link[Edge]]],
        tell: Callable[[dict[str, Any]], None],
        replaced: Callable[[Link[Edge]], None],
    ) -> None:
        self._leases, self._directory, self._peers = leases, directory, peers
        self._tell, self._replaced = tell, replaced
        self._written: dict[str, Written] = {}
        self._changed: dict[str, None] = {}  # in order
        self.is_withdrawn = False

    def changed(self, peer_id: str) -> None:
        self._changed[peer_id] = None

    def withdraw(self) -> None:
        """The process is about to stop: its peers are to be nowhere from here on."""
        self.is_withdrawn = True
        self._changed |= dict.fromkeys(self._written)

    async def settle(self) -> None:
        """Writes what has changed. What LeasesLost interrupts is tried again the next time."""
        while self._changed:
            peer_id = next(iter(self._changed))
            link = self._link(peer_id)
            written = self._written.get(peer_id)
            if link and (written is None or written.link is not link):
                await self._announce(peer_id, link)
            elif written and not link:
                await self._remove(peer_id, written)
            if self._link(peer_id) is link:
                self._changed.pop(peer_id, None)

    async def compare(self, snapshot: Snapshot) -> None:
        """Puts right where a whole snapshot, read after the last settling, differs from what was written."""
        if snapshot.peers is None:
            return
        for peer_id, stored in snapshot.own.items():
            written = self._written.get(peer_id)
            if (written is None or written.stored != stored) and peer_id not in self._changed:
                await self._leases.remove(peer_id, stored)
        for peer_id, written in list(self._written.items()):
            if peer_id not in snapshot.own and peer_id not in self._changed:
                await self._restore(peer_id, written)

    def heard_of(self, peer_id: str, entry: Entry) -> None:
        """Another process has the peer now."""
        written = self._written.get(peer_id)
        if written and written.generation < entry.generation:
            del self._written[peer_id]
            self._replaced(written.link)

    def _link(self, peer_id: str) -> Link[Edge] | None:
        return None if self.is_withdrawn else self._peers().get(peer_id)

    async def _announce(self, peer_id: str, link: Link[Edge]) -> None:
        entry = Entry(self._leases.process, 0, link.scope, link.since, link.version, link.address)
        is_late = time.time() - link.since > LATE_S
        stored = await self._leases.announce(peer_id, entry, is_late=is_late)
        entry = Entry.from_json(stored)
        if entry.process == self._leases.process:
            self._written[peer_id] = Written(link, stored, entry.generation)
            self._tell({"here": peer_id, "entry": stored})
            newest = self._directory.entry(peer_id)
            if newest and newest.process != self._leases.process:
                self.heard_of(peer_id, newest)
        else:
            self._directory.heard_of(peer_id, entry)
            self._replaced(link)

    async def _remove(self, peer_id: str, written: Written) -> None:
        if await self._leases.remove(peer_id, written.stored):
            self._tell({"gone": peer_id, "generation": written.generation})
        self._written.pop(peer_id, None)

    async def _restore(self, peer_id: str, written: Written) -> None:
        entry = Entry.from_json(await self._leases.restore(peer_id, written.stored))
        if entry.process == self._leases.process:
            self._tell({"here": peer_id, "entry": written.stored})
        else:
            self._directory.heard_of(peer_id, entry)
            self.heard_of(peer_id, entry)
