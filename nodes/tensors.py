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
        if tensor.numel():
            view = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
            self._file.seek(place.start)
            done = 0
            while done < len(view):
                count = self._file.readinto(view[done:])
                if not count:
                    raise EOFError(f"{self.path} ends inside tensor {name}")
                done += count
            self.num_bytes_read += done
        return tensor


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
