"""Tensors of a GGUF file to a file of safetensors in bfloat16, a few megabytes at a time.

Slices and not whole tensors: a large vocabulary's embedding takes gigabytes as float32. The file appears when it is
complete, so that whatever ends the work, what is there can be used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from nodes.gguf.file import GgufFile, TensorReader
from nodes.gguf.names import Named

_SLICE_ELEMENTS = 2_000_000
_BYTES = 2  # of a bfloat16


def is_written(target: Path, tensors: Sequence[Named]) -> bool:
    """Whether the file is there with these tensors."""
    header = _header(tensors)
    if not target.exists() or target.stat().st_size != len(header) + _size(tensors):
        return False
    with target.open("rb") as stream:
        return stream.read(len(header)) == header


def write(file: GgufFile, tensors: Sequence[Named], target: Path, count: Callable[[int], object]) -> int:
    """The bytes that were read; `count` is told of each slice's. Raises ModelError, OSError and what `count` raises."""
    partial = _partial(target)  # one writer: the caller holds the file's lock
    try:
        with TensorReader(file) as reader, partial.open("wb") as stream:
            stream.write(_header(tensors))
            for tensor in tensors:
                for rows in _slices(reader, file, tensor, count):
                    stream.write(rows.contiguous().view(torch.uint8).numpy().data)
            reader.check_unchanged()
            stream.flush()
            os.fsync(stream.fileno())  # else a power cut could leave a file of the right size without its data
        os.replace(partial, target)
        return reader.num_bytes_read
    finally:
        partial.unlink(missing_ok=True)


def num_bytes_so_far(target: Path) -> int:
    """Of a file that somebody is writing."""
    partial = _partial(target)
    return partial.stat().st_size if partial.exists() else 0


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.part")


def _slices(
    reader: TensorReader, file: GgufFile, tensor: Named, count: Callable[[int], object]
) -> Iterator[torch.Tensor]:
    """bfloat16 [rows, columns], from the first row on, in Hugging Face's order."""
    source = file.tensors[tensor.gguf_name]
    unit = tensor.paired_rows or 1
    step = max(1, _SLICE_ELEMENTS // (tensor.shape[-1] * unit)) * unit
    for start in range(0, source.num_rows, step):
        end = min(start + step, source.num_rows)
        rows = torch.from_numpy(reader.rows(source, start, end)).to(torch.bfloat16)
        yield _halved(rows, tensor.paired_rows) if tensor.paired_rows else rows
        count((end - start) * source.row_bytes)


def _halved(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Heads of rows 0 1 2 3 … become heads of rows 0 2 … 1 3 …"""
    return rows.view(-1, head_dim // 2, 2, rows.shape[-1]).transpose(1, 2).flatten(0, 2)


def _header(tensors: Sequence[Named]) -> bytes:
    """8 bytes of length, little endian | JSON, filled with spaces to a multiple of 8."""
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + _size([tensor])
        fields[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _size(tensors: Sequence[Named]) -> int:
    return sum(tensor.num_elements for tensor in tensors) * _BYTES
