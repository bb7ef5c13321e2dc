"""Where each node of the mesh is drawn. Pure: who there is goes in, places come out, in units of the picture.

    relay     ─────┬─────────────┬──────────     a bar on top of the models whose nodes share this relay
    model            │ ┌─────────┐ │ ┌─────────┐
                     ├─┤ node    │ ├─┤ node    │   nodes from left to right as their layers follow each other, those
                     │ └─────────┘ │ └─────────┘   with the same ones below each other and by name; a trunk for each
                     └─┤ node    │               column, from which a branch goes to each node with a socket

So 3 nodes are read at a glance, and 200 are rows and columns and no tangle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOX_WIDTH, BOX_HEIGHT, BRANCH = 128.0, 38.0, 24.0
COLUMN, ROW = BRANCH + BOX_WIDTH + 10.0, BOX_HEIGHT + 8.0
MAX_COLUMNS = 8
FEW_ROWS = 4  # a column that is no longer than that isn't split
MARGIN, BAR, TITLE = 10.0, 32.0, 34.0


@dataclass(frozen=True, slots=True)
class Machine:
    key: int
    start_layer: int = 0
    is_connected: bool = True  # to the relay


@dataclass(frozen=True, slots=True)
class Band:
    """A model's nodes, in the order in which they stand below each other."""

    model: str
    num_layers: int
    machines: Sequence[Machine]


@dataclass(frozen=True, slots=True)
class Section:
    """A relay and the models whose nodes connect to it."""

    relay: str
    bands: Sequence[Band]


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float

    @property
    def middle(self) -> float:
        return self.y + BOX_HEIGHT / 2


@dataclass(frozen=True, slots=True)
class Title:
    text: str
    y: float


@dataclass(frozen=True, slots=True)
class Trunk:
    x: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Layout:
    width: float
    height: float
    relays: list[Title]
    models: list[Title]
    boxes: dict[int, Box]  # by a machine's key
    trunks: list[Trunk]


def layout(sections: Sequence[Section]) -> Layout:
    relays, models, boxes, trunks = [], [], {}, []
    y = MARGIN
    num_columns = 2
    for section in sections:
        relays.append(Title(section.relay, y))
        top = y + BAR
        y, ends = top, {}
        for band in section.bands:
            models.append(Title(band.model, y + TITLE))
            columns = columns_of(band)
            num_columns = max(num_columns, len(columns))
            first = y + TITLE + MARGIN
            placed, connected = _placed(columns, first)
            boxes |= placed
            ends |= connected
            y = first + max(map(len, columns), default=0) * ROW
        trunks += [Trunk(_left(column), top, bottom) for column, bottom in sorted(ends.items())]
        y += MARGIN
    return Layout(2 * MARGIN + num_columns * COLUMN, y, relays, models, boxes, trunks)


def columns_of(band: Band) -> list[list[Machine]]:
    """The band's machines from left to right as their layers begin, in few columns of much the same length."""
    groups = _groups(band)
    widths = [1] * len(groups)
    while sum(widths) < MAX_COLUMNS:
        longest = max(range(len(groups)), key=lambda number: _length(groups[number], widths[number]), default=None)
        if longest is None or _length(groups[longest], widths[longest]) <= FEW_ROWS:
            break
        widths[longest] += 1
    return [column for group, width in zip(groups, widths, strict=True) for column in _split(group, width)]


def curve(start: Box, end: Box) -> str:
    """The path of an SVG line from the right of one box to the left of another, wherever that is."""
    x, y = start.x + BOX_WIDTH, start.middle
    bend = max(30.0, abs(end.x - x) / 2)
    return f"M{x:.0f} {y:.0f}C{x + bend:.0f} {y:.0f} {end.x - bend:.0f} {end.middle:.0f} {end.x:.0f} {end.middle:.0f}"


def _groups(band: Band) -> list[list[Machine]]:
    """Those whose layers begin at the same one; where there are many such groups, at much the same one."""
    starts = sorted({machine.start_layer for machine in band.machines})
    place: Mapping[int, int] = {start: number for number, start in enumerate(starts)}
    if len(starts) > MAX_COLUMNS:
        place = {start: start * MAX_COLUMNS // max(band.num_layers, starts[-1] + 1) for start in starts}
    groups = defaultdict(list)
    for machine in band.machines:
        groups[place[machine.start_layer]].append(machine)
    return [groups[number] for number in sorted(groups)]


def _length(group: Sequence[Machine], width: int) -> int:
    return -(-len(group) // width)


def _split(group: Sequence[Machine], width: int) -> list[Sequence[Machine]]:
    length = _length(group, width)
    return [group[start : start + length] for start in range(0, len(group), length)]


def _placed(columns: Sequence[Sequence[Machine]], top: float) -> tuple[dict[int, Box], dict[int, float]]:
    """The boxes, and by column how far down its trunk goes."""
    boxes, ends = {}, {}
    for column, machines in enumerate(columns):
        for row, machine in enumerate(machines):
            box = boxes[machine.key] = Box(_left(column) + BRANCH, top + row * ROW)
            if machine.is_connected:
                ends[column] = box.middle
    return boxes, ends


def _left(column: int) -> float:
    return MARGIN + column * COLUMN
