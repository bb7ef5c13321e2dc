"""Reads single tensors out of safetensors files, each straight into its own memory.

Not mapped: mapped pages of a file count as this process's memory beside the tensor that is made of them, so that a
shard would take its size twice while it loads. Layout: 8 bytes of length N, little endian | N bytes of JSON | data.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


_PIECE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # from the beginning of the file
    end: int


class TensorFile:
    """One safetensors file, open. A context. `num_bytes_read` counts data, not the header."""

    def __init__(self, path: Path) -> None:
        self.path, self.num_bytes_read = path, 0
        self._file = path.open("rb", buffering=0)
        self.places = _places(self._file)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def read(self, name: str) -> torch.Tensor:
        """A tensor of its own memory. Raises KeyError, and EOFError where the file ends before the tensor does."""
        place = self.places[name]
        tensor = torch.empty(place.shape, dtype=place.dtype)
        self._fill(tensor, place.start, name)
        return tensor

    def read_rows(self, name: str, first_row: int, out: torch.Tensor) -> None:
        """Puts as many rows as `out` has into it, in its dtype. Takes a piece at a time, never the tensor twice."""
        place = self.places[name]
        row_bytes = (place.end - place.start) // place.shape[0]
        rows_at_once = max(1, _PIECE_BYTES // max(1, row_bytes))
        for start in range(0, len(out), rows_at_once):
            rows = out[start : start + rows_at_once]
            piece = torch.empty((len(rows), *place.shape[1:]), dtype=place.dtype)
            self._fill(piece, place.start + (first_row + start) * row_bytes, name)
            rows.copy_(piece)

    def _fill(self, tensor: torch.Tensor, offset: int, name: str) -> None:
        """`tensor`: contiguous, gets the bytes from `offset` on."""
        if not tensor.numel():
            return
        view = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
        self._file.seek(offset)
        done = 0
        while done < len(view):
            count = self._file.readinto(view[done:])
            if not count:
                raise EOFError(f"{self.path} ends inside tensor {name}")
            done += count
        self.num_bytes_read += done


def _places(file: io.FileIO) -> Mapping[str, Place]:
    """Headers are checked when the folder is opened (weights.py); here they are only read."""
    length = struct.unpack("<Q", file.read(8))[0]
    header, base = json.loads(file.read(length)), 8 + length
    return {
        name: Place(
            DTYPES[entry["dtype"]],
            tuple(entry["shape"]),
            base + entry["data_offsets"][0],
            base + entry["data_offsets"][1],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }
