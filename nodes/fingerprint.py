"""What makes two copies of a model the same: SHA-256 over the sorted names and SHA-256 of its files.

A file's hash is kept in the cache by its size and time of change, so that gigabytes are read once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nodes import catalog


def combine(files: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of (file name, SHA-256) pairs."""
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(files)).encode()).hexdigest()


def of_folder(folder: Path, names: Iterable[str]) -> str:
    """The fingerprint of those of the named files that are there."""
    return combine(_hashes(folder, names, of=folder).items())


def of_file(file: Path) -> str:
    """The fingerprint of a model that is one file: the SHA-256 of that."""
    return _hashes(file.parent, [file.name], of=file)[file.name]


def _hashes(folder: Path, names: Iterable[str], of: Path) -> dict[str, str]:
    """The SHA-256 of those of the named files that are there. `of`: what they are kept for in the cache."""
    note = catalog.cache_dir() / "fingerprints" / f"{hashlib.sha256(bytes(of)).hexdigest()[:32]}.json"
    known = _read_note(note)
    hashes = {name: _hash(folder / name, known.get(name)) for name in names if (folder / name).exists()}
    if hashes != known:
        catalog.write_atomically(note, json.dumps(hashes).encode())
    return {name: entry[2] for name, entry in hashes.items()}


def _hash(file: Path, known: Any) -> list[Any]:
    """[size, modified at, SHA-256]: the known one while size and time are the same."""
    status = file.stat()
    if isinstance(known, list) and known[:2] == [status.st_size, status.st_mtime_ns] and len(known) == 3:
        return known
    with open(file, "rb") as stream:
        return [status.st_size, status.st_mtime_ns, hashlib.file_digest(stream, "sha256").hexdigest()]


def _read_note(note: Path) -> dict[str, Any]:
    """Empty when there is none, or one that can't be read: hashes can always be made again."""
    try:
        fields = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}
