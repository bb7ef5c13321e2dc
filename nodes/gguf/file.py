"""A GGUF file, read: its metadata, its table of tensors, and the numbers of a tensor.

Read by hand and not with gguf.GGUFReader, which makes numpy arrays of each word of a vocabulary: seconds at every start
of a node. The layout is that of docs/gguf.md in ggml's repository; the gguf package knows the quantizations.

    "GGUF" | u32 version | u64 number of tensors | u64 number of metadata | metadata | table | padding | data
    metadata: name | u32 type | value; a text is u64 length | UTF-8, an array u32 type | u64 count | values
    table: name | u32 number of dimensions | u64 each, the innermost first | u32 type | u64 offset in the data
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from nodes.weights import ModelError

VERSIONS = (2, 3)  # version 1 had lengths of 32 bits; nothing writes it any more
DEFAULT_ALIGNMENT = 32

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _TEXT, _ARRAY = 6, 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class Array:
    """Where an array of the metadata lies. Vocabularies are arrays: they are read when they are needed."""

    type: int
    count: int
    start: int


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]  # as torch has it: rows first
    type: GGMLQuantizationType
    start: int  # from the beginning of the file
    num_bytes: int

    @property
    def num_rows(self) -> int:
        """Of the last dimension's length; a vector is one row."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.num_bytes // self.num_rows


@dataclass(frozen=True)
class GgufFile:
    """What the file's header says, checked against the file's size."""

    path: Path
    metadata: Mapping[str, Any]  # an array is an Array
    tensors: Mapping[str, GgufTensor]
    header_bytes: int
    changed_at: tuple[int, int]  # size and time of change

    def array(self, key: str) -> list[Any]:
        """The values of an array of the metadata; empty where there is none. Raises ModelError."""
        found = self.metadata.get(key)
        if not isinstance(found, Array):
            return []
        with _mapped(self.path) as view:
            cursor = _Cursor(view, found.start)
            return [cursor.value(found.type) for _ in range(found.count)]


def read_header(path: Path) -> GgufFile:
    """Raises ModelError naming the file, and the tensor where it is one that is wrong."""
    status = path.stat()
    with _mapped(path) as view:
        cursor = _Cursor(view, 0)
        num_tensors, num_entries = _preamble(path, cursor)
        metadata = {cursor.text(): cursor.value(cursor.scalar("I")) for _ in range(num_entries)}
        entries = [_entry(path, cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelError(f"{path}: its metadata general.alignment is {alignment!r}")
    base = -(-cursor.position // alignment) * alignment
    tensors = {name: GgufTensor(name, shape, kind, base + offset, size) for name, shape, kind, offset, size in entries}
    if len(tensors) != num_tensors or len(metadata) != num_entries:
        raise ModelError(f"{path} names a tensor or a metadatum twice")
    _check_ends(path, status.st_size, tensors)
    return GgufFile(path, metadata, tensors, cursor.position, (status.st_size, status.st_mtime_ns))


class TensorReader:
    """The file's tensors, row by row. A context. `num_bytes_read` counts what was read of them."""

    def __init__(self, file: GgufFile) -> None:
        self._file, self._descriptor, self.num_bytes_read = file, -1, 0

    def __enter__(self) -> TensorReader:
        self._descriptor = os.open(self._file.path, os.O_RDONLY)
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)

    def rows(self, tensor: GgufTensor, start: int, end: int) -> NDArray[numpy.float32]:
        """float32 [end - start, columns] of a tensor seen as rows. Raises ModelError."""
        size, first = (end - start) * tensor.row_bytes, tensor.start + start * tensor.row_bytes
        raw = os.pread(self._descriptor, size, first)
        self.num_bytes_read += len(raw)
        if len(raw) != size or not numpy.isfinite(numbers := _numbers(raw, tensor, end - start)).all():
            fault = "holds numbers that are none" if len(raw) == size else "ends beyond the file"
            raise ModelError(f"{self._file.path}: tensor {tensor.name} {fault}: the file is damaged; fetch it again")
        return numbers

    def check_unchanged(self) -> None:
        """Raises ModelError when the file isn't the one whose header was read."""
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != self._file.changed_at:
            raise ModelError(f"{self._file.path} was changed while it was read; start again")


def check_types(file: GgufFile) -> None:
    """Raises ModelError where there is a tensor whose numbers can't be had from its bytes."""
    for tensor in {tensor.type: tensor for tensor in file.tensors.values()}.values():
        block = numpy.zeros((1, GGML_QUANT_SIZES[tensor.type][1]), dtype=numpy.uint8)
        try:
            dequantize(block, tensor.type)
        except NotImplementedError:
            fault = f"is of type {tensor.type.name}, which can't be unpacked here; take another quantization"
            raise ModelError(f"{file.path}: tensor {tensor.name} {fault}") from None


def _numbers(raw: bytes, tensor: GgufTensor, num_rows: int) -> NDArray[numpy.float32]:
    packed = numpy.frombuffer(raw, dtype=numpy.uint8).reshape(num_rows, tensor.row_bytes)
    with numpy.errstate(all="ignore"):  # a damaged scale is found by its result
        numbers: NDArray[numpy.float32] = dequantize(packed, tensor.type)
    return numpy.require(numbers, requirements="W")  # torch asks for it; only float32 comes as a view of the bytes


class _Cursor:
    def __init__(self, view: mmap.mmap, position: int) -> None:
        self._view, self.position = view, position

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._view, self.position)
        self.position += struct.calcsize(f"<{form}")
        return value

    def bytes(self, size: int) -> bytes:
        data = self._view[self.position : self.position + size]
        if len(data) != size:
            raise ValueError(f"it ends at {self.position + len(data)}, in the middle of its metadata")
        self.position += size
        return data

    def text(self) -> str:
        return self.bytes(self.scalar("Q")).decode()

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"it has a value of type {kind}")
        value = self.scalar(_SCALARS[kind])
        # As people write it: 1e-05, where its 32 bits are 9.999999747378752e-06.
        return float(str(numpy.float32(value))) if kind == _FLOAT32 else value

    def _array(self) -> Array:
        kind, count = self.scalar("I"), self.scalar("Q")
        found = Array(kind, count, self.position)
        if kind == _TEXT:
            for _ in range(count):
                self._skip(self.scalar("Q"))
        elif kind in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[kind]))
        else:
            raise ValueError(f"it has an array of type {kind}")
        return found

    def _skip(self, size: int) -> None:
        self.position += size
        if self.position > len(self._view):
            raise ValueError(f"its metadata goes on to {self.position}, beyond its end")


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """For headers only: mapped pages of tensors would count as this process's memory."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            yield view
    except (struct.error, ValueError) as error:
        raise ModelError(f"{path} is truncated or not GGUF: {error}") from None


def _preamble(path: Path, cursor: _Cursor) -> tuple[int, int]:
    """(number of tensors, number of metadata)"""
    if (magic := cursor.bytes(4)) != b"GGUF":
        raise ModelError(f"{path} isn't GGUF: it begins with {magic!r}")
    if (version := cursor.scalar("I")) not in VERSIONS:
        raise ModelError(f"{path} is GGUF of version {version}, or of the other byte order; versions 2 and 3 are read")
    return cursor.scalar("Q"), cursor.scalar("Q")


def _entry(path: Path, cursor: _Cursor) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int, int]:
    """A line of the table: name, shape, type, offset in the data, bytes."""
    name, num_dimensions = cursor.text(), cursor.scalar("I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise ModelError(f"{path}: tensor {name} has {num_dimensions} dimensions")
    shape = tuple(reversed([cursor.scalar("Q") for _ in range(num_dimensions)]))
    number, offset = cursor.scalar("I"), cursor.scalar("Q")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise ModelError(f"{path}: tensor {name} is of type {number}, which isn't known") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if 0 in shape or shape[-1] % block:
        raise ModelError(f"{path}: tensor {name} has rows of {shape[-1]} numbers; {kind.name} comes in {block}s")
    return name, shape, kind, offset, math.prod(shape) // block * block_bytes


def _check_ends(path: Path, size: int, tensors: Mapping[str, GgufTensor]) -> None:
    for tensor in tensors.values():
        if (end := tensor.start + tensor.num_bytes) > size:
            raise ModelError(f"{path} is truncated: {size} bytes, but tensor {tensor.name} ends at {end}")
