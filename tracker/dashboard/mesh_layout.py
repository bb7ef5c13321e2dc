"""Where each node of the mesh is drawn. Pure: who there is goes in, places come out, in units of the picture.

    relay     ─────┬─────────────┬──────────     a bar on top of the models whose nodes share this relay
    model            │ ┌─────────┐ │ ┌─────────┐
                     ├─┤ node    │ ├─┤ node    │   nodes from left to right as their layers follow each other, those
                     │ └─────────┘ │ └─────────┘   with the same ones below each other and by name; a trunk for each
                     └─┤ node    │               column, from which a branch goes to each node with a socket

So 3 nodes are read at a glance, and 200 are rows and columns and no tangle. Where there are few nodes they stand wide
apart, and lines from one to another run below them; else from side to side, behind those between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOX_WIDTH, BOX_HEIGHT, BRANCH = 128.0, 38.0, 24.0
MAX_COLUMNS = 8
MAX_ROOMY, MAX_ROOMY_COLUMNS = 20, 4  # nodes and columns of a picture that has room
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
class Pitch:
    """From one column to the next, from one row to the next."""

    column: float
    row: float


CLOSE = Pitch(BRANCH + BOX_WIDTH + 10.0, BOX_HEIGHT + 8.0)
ROOMY = Pitch(BRANCH + BOX_WIDTH + 80.0, BOX_HEIGHT + 62.0)


@dataclass(frozen=True, slots=True)
class Curve:
    path: str  # of an SVG <path>
    x: float  # where a word about it has its place
    y: float


@dataclass(frozen=True, slots=True)
class Layout:
    pitch: Pitch
    width: float
    height: float
    relays: list[Title]
    models: list[Title]
    boxes: dict[int, Box]  # by a machine's key
    trunks: list[Trunk]


def layout(sections: Sequence[Section]) -> Layout:
    relays, models, trunks = [], [], []
    boxes: dict[int, Box] = {}
    placed = [[(band, columns_of(band)) for band in section.bands] for section in sections]
    num_columns = max((len(columns) for bands in placed for _, columns in bands), default=0)
    num_machines = sum(len(band.machines) for bands in placed for band, _ in bands)
    pitch = ROOMY if num_machines <= MAX_ROOMY and num_columns <= MAX_ROOMY_COLUMNS else CLOSE
    y = MARGIN
    for section, bands in zip(sections, placed, strict=True):
        relays.append(Title(section.relay, y))
        top = y + BAR
        y = top
        ends: dict[int, float] = {}
        for band, columns in bands:
            models.append(Title(band.model, y + TITLE))
            first = y + TITLE + MARGIN
            here, connected = _placed(columns, first, pitch)
            boxes |= here
            ends |= connected
            y = first + max(map(len, columns), default=0) * pitch.row
        trunks += [Trunk(_left(column, pitch), top, bottom) for column, bottom in sorted(ends.items())]
        y += MARGIN
    return Layout(pitch, 2 * MARGIN + max(2, num_columns) * pitch.column, y, relays, models, boxes, trunks)


def columns_of(band: Band) -> list[Sequence[Machine]]:
    """The band's machines from left to right as their layers begin, in few columns of much the same length."""
    groups = _groups(band)
    widths = [1] * len(groups)
    while sum(widths) < MAX_COLUMNS:
        longest = max(range(len(groups)), key=lambda number: _length(groups[number], widths[number]), default=None)
        if longest is None or _length(groups[longest], widths[longest]) <= FEW_ROWS:
            break
        widths[longest] += 1
    return [column for group, width in zip(groups, widths, strict=True) for column in _split(group, width)]


def curve(places: Layout, start: Box, end: Box, lower: float = 0.0) -> Curve:
    """A line from one box to another, wherever that is. `lower` than the middles of the boxes it begins and ends, so
    that lines of different kinds don't hide each other."""
    return _below(start, end, places.pitch, lower) if places.pitch == ROOMY else _beside(start, end, lower)


def _beside(start: Box, end: Box, lower: float) -> Curve:
    """From the right side of one to the left side of the other."""
    x, y, last_y = start.x + BOX_WIDTH, start.middle + lower, end.middle + lower
    bend = max(30.0, abs(end.x - x) / 2)
    path = f"M{x:.0f} {y:.0f}C{x + bend:.0f} {y:.0f} {end.x - bend:.0f} {last_y:.0f} {end.x:.0f} {last_y:.0f}"
    return Curve(path, (x + end.x) / 2, (y + last_y) / 2)


def _below(start: Box, end: Box, pitch: Pitch, lower: float) -> Curve:
    """From under one to under the other, the deeper the further they are apart."""
    x, last_x = start.x + BOX_WIDTH * 0.6 + lower, end.x + BOX_WIDTH * 0.4 + lower
    y, last_y = start.y + BOX_HEIGHT, end.y + BOX_HEIGHT
    depth = 28.0 + 14.0 * min(3.0, abs(end.x - start.x) / pitch.column)
    path = f"M{x:.0f} {y:.0f}C{x:.0f} {y + depth:.0f} {last_x:.0f} {last_y + depth:.0f} {last_x:.0f} {last_y:.0f}"
    return Curve(path, (x + last_x) / 2, (y + last_y) / 2 + 0.75 * depth)  # 3/4: where such a curve has its middle


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


def _placed(columns: Sequence[Sequence[Machine]], top: float, pitch: Pitch) -> tuple[dict[int, Box], dict[int, float]]:
    """The boxes, and by column how far down its trunk goes."""
    boxes, ends = {}, {}
    for column, machines in enumerate(columns):
        for row, machine in enumerate(machines):
            box = boxes[machine.key] = Box(_left(column, pitch) + BRANCH, top + row * pitch.row)
            if machine.is_connected:
                ends[column] = box.middle
    return boxes, ends


def _left(column: int, pitch: Pitch) -> float:
    return MARGIN + column * pitch.column
