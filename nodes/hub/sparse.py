"""A file of which only some bytes have come so far, and the record of which: what is fetched survives whatever ends
the process, and what isn't recorded is fetched again.

The file has its full size from the start, with holes that take no room on the disk. One process at a time writes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from nodes import storage
from nodes.hub.spans import Span, merged, without

RECORDS = ".filled"  # the folder of the records, beside the files
RECORD_EVERY_BYTES, RECORD_EVERY_S = 64 << 20, 5.0  # what kill -9 costs, at most


@dataclass(frozen=True)
class Record:
    """What is known of a file's bytes. `is_verified`: all of them are there and have the hash they should have."""

    filled: Sequence[Span] = ()
    etag: str = ""  # its sender's
    is_verified: bool = False

    @classmethod
    def read(cls, path: Path, size: int) -> Record:
        """Of the file at `path`; nothing is filled where the record can't be read or is of another file."""
        try:
            fields = json.loads(_record_of(path).read_bytes())
            filled = merged((int(start), int(end)) for start, end in fields["filled"])
            if fields["size"] == size == path.stat().st_size and not without(filled, [(0, size)]):
                return cls(filled, str(fields["etag"]), bool(fields["is_verified"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass  # none, or none of ours: the bytes are fetched again
        return cls()

    def missing(self, spans: Iterable[Span]) -> list[Span]:
        return without(spans, self.filled)

    def is_complete(self, size: int) -> bool:
        return list(self.filled) == merged([(0, size)])


class SparseFile:
    """Open for writing. A context."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.known = Record()
        self._num_unrecorded, self._recorded_at = 0, time.monotonic()
        self._descriptor = -1

    def __enter__(self) -> SparseFile:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self.known = Record.read(self.path, self.size)
        if os.fstat(self._descriptor).st_size != self.size:
            self.forget()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._num_unrecorded:
                self.record()
        finally:
            os.close(self._descriptor)

    def write(self, start: int, data: bytes) -> None:
        """Recorded now and then, and at the end of the block."""
        view, at = memoryview(data), start
        while view:
            count = os.pwrite(self._descriptor, view, at)
            view, at = view[count:], at + count
        self.known = replace(self.known, filled=merged([*self.known.filled, (start, at)]))
        self._num_unrecorded += len(data)
        is_time = time.monotonic() - self._recorded_at >= RECORD_EVERY_S
        if is_time or self._num_unrecorded >= RECORD_EVERY_BYTES:
            self.record()

    def came_with(self, etag: str) -> None:
        self.known = replace(self.known, etag=etag)

    def verified(self) -> None:
        self.known = replace(self.known, is_verified=True)
        self.record()

    def record(self) -> None:
        """The record never names bytes that the disk may yet lose."""
        os.fdatasync(self._descriptor)
        storage.write_atomically(_record_of(self.path), json.dumps({"size": self.size, **asdict(self.known)}).encode())
        self._num_unrecorded, self._recorded_at = 0, time.monotonic()

    def forget(self) -> None:
        """Makes it empty: what it holds is of another file, or isn't known."""
        self.known, self._num_unrecorded = Record(), 0
        _record_of(self.path).unlink(missing_ok=True)
        os.ftruncate(self._descriptor, 0)
        os.ftruncate(self._descriptor, self.size)


def _record_of(path: Path) -> Path:
    return path.parent / RECORDS / f"{path.name}.json"
