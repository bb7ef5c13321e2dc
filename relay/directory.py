"""What this process knows of the peers of others: a snapshot of the shared presence, kept fresh by news.

Plain reads, safe from any thread: dictionaries are replaced or changed in one step, never half-way. A process whose
lease is over counts for nothing, whatever it has left behind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """A peer's registration. The one with the highest generation is the newest, wherever it happened."""

    process: str
    generation: int
    scope: str
    since: float  # Unix seconds, by that process' clock
    version: int  # of the wire
    address: str

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """Raises ValueError for what isn't an entry. A later version may say more; that is left aside."""
        fields = json.loads(text)
        try:
            return cls(**{name: kind(fields[name]) for name, kind in _FIELDS.items()})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a registration: {error}") from None

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


_FIELDS: dict[str, Any] = {
    "process": str,
    "generation": int,
    "scope": str,
    "since": float,
    "version": int,
    "address": str,
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shared presence at one moment. `peers` is None where nothing has changed since the one before."""

    change: int  # the counter that every registration and every leaving raises
    processes: Mapping[str, str]  # whose lease runs, and where each is
    peers: Mapping[str, Entry] | None
    own: Mapping[str, str]  # of the process that asks, as stored


class Directory:
    def __init__(self) -> None:
        self.processes: dict[str, str] = {}
        self.change = 0
        self._entries: dict[str, Entry] = {}

    def take(self, snapshot: Snapshot) -> None:
        """News that the snapshot can't know yet outlives it."""
        self.processes = dict(snapshot.processes)
        if snapshot.peers is not None:
            newer = {key: it for key, it in self._entries.items() if it.generation > snapshot.change}
            self._entries = {**snapshot.peers, **newer}
        self.change = snapshot.change

    def heard_of(self, peer_id: str, entry: Entry) -> None:
        known = self._entries.get(peer_id)
        if known is None or known.generation <= entry.generation:
            self._entries[peer_id] = entry

    def heard_gone(self, peer_id: str, generation: int) -> None:
        known = self._entries.get(peer_id)
        if known is not None and known.generation <= generation:
            self._entries.pop(peer_id, None)

    def forget_all(self) -> None:
        """Nobody can be reached any more. What was known of the peers is kept, for the reason of a refusal."""
        self.processes = {}

    def entry(self, peer_id: str) -> Entry | None:
        """Of a peer of a process whose lease runs."""
        entry = self._entries.get(peer_id)
        return entry if entry is not None and entry.process in self.processes else None

    def last_known(self, peer_id: str) -> Entry | None:
        return self._entries.get(peer_id)

    def has_twin(self, process: str, where: str) -> bool:
        """Whether peers reach another process at its address too: some are there already. One without any may only have
        been given the address of the first."""
        twins = {it for it, there in self.processes.items() if there == where} - {process}
        return any(entry.process in twins for entry in self.entries().values())

    def entries(self) -> dict[str, Entry]:
        processes = self.processes
        return {key: it for key, it in self._entries.copy().items() if it.process in processes}


directory = Directory()
