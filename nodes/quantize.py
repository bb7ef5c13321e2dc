"""Weights in fewer bits: to eight or four and back, a few rows at a time, so that little memory is needed meanwhile.

Torch's own packed operators for CPUs are used. torchao has no others in its package for x86, and what FBGEMM adds takes
activations of eight bits. Both work in bfloat16 whatever the shard's dtype: their float32 paths run 30 times slower.

int8: a scale for each row, which is what the operator takes. int4: a scale and a zero for each 32 numbers of a row,
which are the blocks of 4-bit GGUF files: such a file's numbers stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

GROUP = 32  # numbers of a row that share a scale and a zero in int4; rows must be a multiple of it long
_TILE_ELEMENTS = 1 << 16  # worked at once: what a core's cache holds in float32


@dataclass(slots=True)
class Error:
    """How far quantized weights are from the dense ones, summed over tensors."""

    squared_difference: float = 0.0
    squared_weights: float = 0.0

    def add(self, other: Error) -> None:
        self.squared_difference += other.squared_difference
        self.squared_weights += other.squared_weights

    @property
    def relative(self) -> float:
        """Root mean square of the differences over that of the weights."""
        return float((self.squared_difference / self.squared_weights) ** 0.5) if self.squared_weights else 0.0

    def _count(self, dense: torch.Tensor, quantized: torch.Tensor) -> None:
        self.squared_weights += float(dense.square().sum())
        self.squared_difference += float(dense.sub(quantized).square_().sum())


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    values: torch.Tensor  # int8 [rows, columns]
    scales: torch.Tensor  # bfloat16 [rows]
    error: Error


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """`num_rows` may be fewer than the packed ones, which are whole blocks."""

    packed: torch.Tensor  # uint8 [blocks, columns, half a block]
    scales_and_zeros: torch.Tensor  # bfloat16 [groups, packed rows, 2]; a number is (value - 8) * scale + zero
    num_rows: int
    error: Error


def can_be_quantized(weight: torch.Tensor) -> bool:
    """`weight`: [rows, columns]. The operators read beyond their input where a row's length isn't a multiple."""
    return weight.dim() == 2 and weight.shape[1] % GROUP == 0


def to_int8(weight: torch.Tensor) -> Int8Matrix:
    """`weight`: [rows, columns] of any floating point dtype."""
    error, scales = Error(), torch.empty(len(weight), dtype=torch.bfloat16)
    values = torch.empty(weight.shape, dtype=torch.int8)
    for rows in _tiles(weight):
        dense = weight[rows].float()
        scales[rows] = dense.abs().amax(1) / 127
        scale = scales[rows].float().clamp_(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
        # Halves go to the even number; the scale was rounded to bfloat16, so that 127 may be exceeded by a little.
        rounded = dense.div(scale).round_().clamp_(-127, 127)
        values[rows] = rounded
        error._count(dense, rounded.mul_(scale))
    return Int8Matrix(values, scales, error)


def to_int4(weight: torch.Tensor) -> Int4Matrix:
    """`weight`: [rows, columns] of any floating point dtype, columns a multiple of GROUP."""
    layout, error, (num_rows, columns) = int4_layout(), Error(), weight.shape
    num_blocks = -(-num_rows // layout.block)
    packed = torch.empty(num_blocks, columns, layout.block // 2, dtype=torch.uint8)
    scales_and_zeros = torch.zeros(columns // GROUP, num_blocks * layout.block, 2, dtype=torch.bfloat16)
    for rows in _tiles(weight, layout.block):
        dense = weight[rows].float().view(-1, columns // GROUP, GROUP)
        values, scale, zero = _in_groups(dense)
        error._count(dense, values.sub(8).mul_(scale).add_(zero))
        scales_and_zeros[:, rows] = torch.cat((scale, zero), 2).transpose(0, 1).to(torch.bfloat16)
        packed[rows.start // layout.block : -(-rows.stop // layout.block)] = _pack(values.flatten(1), layout)
    return Int4Matrix(packed, scales_and_zeros, num_rows, error)


def _in_groups(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values of 0 to 15 [rows, groups, GROUP], scale and zero [rows, groups, 1], of float32 [rows, groups, GROUP]."""
    low, high = dense.amin(2, keepdim=True), dense.amax(2, keepdim=True)
    # Rounded as they will be kept before they are used, so that the values fit what is kept.
    scale = high.sub(low).div_(15).bfloat16().float().clamp_(min=torch.finfo(torch.float32).tiny)
    zero = low.add(scale, alpha=8).bfloat16().float()
    values = dense.sub(zero).div_(scale).add_(8).round_().clamp_(0, 15)
    return values, scale, zero


def int8_rows(matrix: Int8Matrix, rows: torch.Tensor) -> torch.Tensor:
    """float32 [number of `rows`, columns]; `rows`: their numbers."""
    return matrix.values[rows].float().mul_(matrix.scales[rows].float().unsqueeze(1))


def int4_rows(matrix: Int4Matrix, rows: torch.Tensor) -> torch.Tensor:
    """float32 [number of `rows`, columns]; `rows`: their numbers."""
    layout = int4_layout()
    byte, half = layout.place(rows % layout.block)
    values = (matrix.packed[rows // layout.block, :, byte] >> (4 * half).unsqueeze(1).to(torch.uint8)) & 15
    scale, zero = matrix.scales_and_zeros[:, rows].float().transpose(0, 1).unsqueeze(2).unbind(3)
    return values.float().view(len(rows), -1, GROUP).sub_(8).mul_(scale).add_(zero).flatten(1)


def unpack_int4(matrix: Int4Matrix, blocks: slice, out: torch.Tensor) -> None:
    """Writes the blocks' rows as columns of `out`: [columns, packed rows], bfloat16."""
    layout = int4_layout()
    packed, width = matrix.packed[blocks], out.shape[1] // 2
    places = matrix.scales_and_zeros.view(-1, len(matrix.packed), layout.block, 2)[:, blocks]
    columns = min(len(out), max(GROUP, _TILE_ELEMENTS // width // GROUP * GROUP))
    # Made once: the time goes into allocating otherwise. values: [columns, blocks, half a block]
    values = torch.empty(columns, len(packed), layout.block // 2, dtype=torch.uint8)
    numbers = torch.empty(columns, width)
    for half in (0, 1):
        # low, step: [groups, 1, half of the rows]
        low, step = (layout.half(places[..., kind], half).float().reshape(-1, 1, width) for kind in (1, 0))
        low.sub_(step, alpha=8)
        target = layout.half(out.view(len(out), -1, layout.block), half)
        for start in range(0, len(out), columns):
            stop = min(start + columns, len(out))
            groups, count = slice(start // GROUP, stop // GROUP), stop - start
            part, found = packed[:, start:stop].transpose(0, 1), values[:count]
            torch.bitwise_and(part, 15, out=found) if half == 0 else torch.bitwise_right_shift(part, 4, out=found)
            dense = numbers[:count].copy_(found.view(count, width)).view(-1, GROUP, width)
            torch.addcmul(low[groups], dense, step[groups], out=dense)
            target[start:stop].copy_(dense.view(target[start:stop].shape))


@dataclass(frozen=True, slots=True)
class Int4Layout:
    """How torch's operator for CPUs packs: blocks of rows, for each column the rows' values, two in a byte.

    Two rows share a byte: neighbours, or row and row plus half a block. Which depends on the instructions the CPU has.
    """

    block: int
    has_neighbours: bool

    def half(self, rows: torch.Tensor, half: int) -> torch.Tensor:
        """Of [..., block] those rows whose values are in the bytes' lower (0) or upper (1) halves."""
        if self.has_neighbours:
            return rows[..., half::2]
        return rows[..., half * self.block // 2 :][..., : self.block // 2]

    def place(self, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The byte, and its half, in which a row of a block is."""
        if self.has_neighbours:
            return row // 2, row % 2
        return row % (self.block // 2), row // (self.block // 2)


@cache
def int4_layout() -> Int4Layout:
    """What this torch does on this CPU, found by packing something known."""
    values = (
        torch.arange(64 * GROUP, dtype=torch.int32).mul_(7).bitwise_right_shift_(2).bitwise_and_(15).view(64, GROUP)
    )
    for layout in (Int4Layout(64, False), Int4Layout(32, False), Int4Layout(32, True)):
        packed = _pack(values, layout)
        found = torch.empty(64 // layout.block, GROUP, layout.block, dtype=torch.uint8)
        layout.half(found, 0).copy_(packed & 15)
        layout.half(found, 1).copy_(packed >> 4)
        if torch.equal(found.transpose(1, 2).reshape(64, GROUP).int(), values):
            return layout
    raise RuntimeError("this torch packs int4 weights in an unknown way on this CPU; take --weights int8")


def _pack(values: torch.Tensor, layout: Int4Layout) -> torch.Tensor:
    """uint8 [blocks, columns, half a block] of values [rows, columns]; rows of zeros fill the last block."""
    missing = -len(values) % layout.block
    whole = torch.nn.functional.pad(values.to(torch.int32), (0, 0, 0, missing))
    packed: torch.Tensor = torch._convert_weight_to_int4pack_for_cpu(whole, 1)
    return packed.view(-1, values.shape[1], layout.block // 2)


def _tiles(weight: torch.Tensor, multiple: int = 1) -> list[slice]:
    """The rows in slices that are worked at once."""
    step = max(1, _TILE_ELEMENTS // weight.shape[1] // multiple) * multiple
    return [slice(start, min(start + step, len(weight))) for start in range(0, len(weight), step)]
