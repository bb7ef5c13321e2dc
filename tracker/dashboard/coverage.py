"""Which layers of a model are held how many times, and what would close a gap, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tracker.words import layers_in_words

MAX_NAMED = 3  # nodes that a sentence names


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that has joined, and its layers [start_layer, end_layer)."""

    name: str
    pk: int
    start_layer: int
    end_layer: int
    is_online: bool
    closed: str | None  # why an online one takes no sessions: "is paused by the operator"
    why: str  # it is online, or not

    @property
    def is_open(self) -> bool:
        return self.is_online and not self.closed


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring layers that the same nodes hold."""

    start_layer: int
    end_layer: int
    holders: tuple[Holder, ...]

    @property
    def words(self) -> str:
        return layers_in_words(self.start_layer, self.end_layer)

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.start_layer

    @property
    def times(self) -> int:
        """How many nodes answer for these layers now."""
        return sum(holder.is_open for holder in self.holders)

    @property
    def kind(self) -> str:
        """Of the sheet's classes for a part of a bar."""
        if self.times:
            return ("", "once", "twice")[self.times] if self.times < 3 else "more"
        return "closed" if any(holder.is_online for holder in self.holders) else "gap"

    def told(self) -> str:
        """ "layers 0–5: 2 nodes", without their names."""
        if self.times:
            return f"{self.words}: {self.times} node{'' if self.times == 1 else 's'}"
        return f"{self.words}: {'no node that takes sessions' if self.kind == 'closed' else 'no node online'}"


def parts(num_layers: int, holders: Iterable[Holder]) -> list[Part]:
    """All layers in order, cut wherever somebody's layers begin or end."""
    known = sorted((holder for holder in holders if holder.start_layer < num_layers), key=lambda holder: holder.name)
    ends = {0, num_layers}
    for holder in known:
        ends |= {holder.start_layer, min(holder.end_layer, num_layers)}
    cuts = sorted(ends)
    return [
        Part(start, end, tuple(it for it in known if it.start_layer <= start and end <= it.end_layer))
        for start, end in pairwise(cuts)
    ]


def gaps(of: Sequence[Part]) -> list[Part]:
    """What keeps the model from answering: parts that nobody answers for, those side by side with one cause as one."""
    found: list[Part] = []
    for part in of:
        if part.times:
            continue
        last = found[-1] if found else None
        if last and last.end_layer == part.start_layer and last.holders == part.holders:
            found[-1] = Part(last.start_layer, part.end_layer, part.holders)
        else:
            found.append(part)
    return found


def remedy(gap: Part, *, with_names: bool) -> str:
    """What would close it: whoever has these layers already, else another node."""
    layers = f"{gap.start_layer}:{gap.end_layer}"
    has = f"{gap.words[0].upper()}{gap.words[1:]} {'has' if gap.num_layers == 1 else 'have'}"
    another = f"Another node with --layers {layers} or --layers auto closes the gap, too."
    online = [f"{holder.name} {holder.closed}" for holder in gap.holders if holder.is_online]
    if online:
        told = f": {_listed(online)}. {another}" if with_names else "."
        return f"{has} no node that takes sessions{told}"
    if not gap.holders:
        return f"{has} no node. A node with --layers {layers} or --layers auto closes the gap."
    if not with_names:
        return f"{has} no node online."
    away = _listed([f"{holder.name} ({holder.why})" for holder in gap.holders])
    whoever = "one of these" if len(gap.holders) > 1 else "it"
    return f"{has} no node online: {away} held them. The gap closes when {whoever} is back. {another}"


def _listed(entries: Sequence[str]) -> str:
    """ "a", "a and b", "a, b, c and 4 more"."""
    named = list(entries[:MAX_NAMED])
    if len(entries) > MAX_NAMED:
        named.append(f"{len(entries) - MAX_NAMED} more")
    *others, last = named
    return f"{', '.join(others)} and {last}" if others else last
