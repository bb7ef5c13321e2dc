"""What makes two copies of a model the same: SHA-256 over the sorted names and SHA-256 of its files.

A file's hash is kept in the cache by its size and time of change, so that gigabytes are read once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nodes import storage
from nodes.layout import ModelError

_NEVER_SEEN = (
    "{file} is missing and its hash was never noted here, so that it can't be told which model this is: "
    "run the node once with all files in place, or put a meshnet.json into the folder: "
    '{{"fingerprint": "the 64 hex digits that the site\'s admin shows for the model"}}'
)


def combine(files: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of (file name, SHA-256) pairs."""
    return hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in sorted(files)).encode()).hexdigest()


def of_folder(folder: Path, needed: Iterable[str], optional: Iterable[str] = ()) -> str:
    """The fingerprint of the needed files and of those of the optional ones that are there.

    A needed file may be gone if its hash was noted while it was there: a node needs only the files of its layers.
    Raises ModelError when it wasn't.
    """
    present = [name for name in optional if (folder / name).exists()]
    return combine(_hashes(folder, [*needed, *present], of=folder).items())


def of_file(file: Path) -> str:
    """The fingerprint of a model that is one file: the SHA-256 of that."""
    return _hashes(file.parent, [file.name], of=file)[file.name]


def _hashes(folder: Path, names: Iterable[str], of: Path) -> dict[str, str]:
    """The SHA-256 of the named files. `of`: what they are kept for in the cache."""
    note = storage.cache_dir() / "fingerprints" / f"{hashlib.sha256(bytes(of)).hexdigest()[:32]}.json"
    known = _read_note(note)
    hashes = {name: _hash(folder / name, known.get(name)) for name in names}
    if hashes != known:
        storage.write_atomically(note, json.dumps(hashes).encode())
    return {name: entry[2] for name, entry in hashes.items()}


def _hash(file: Path, known: Any) -> list[Any]:
    """[size, modified at, SHA-256]: the known one while size and time are the same, or when the file is gone."""
    is_known = isinstance(known, list) and len(known) == 3
    try:
        status = file.stat()
    except FileNotFoundError:
        if is_known:
            return list(known)
        raise ModelError(_NEVER_SEEN.format(file=file)) from None
    if is_known and known[:2] == [status.st_size, status.st_mtime_ns]:
        return list(known)
    return [status.st_size, status.st_mtime_ns, sha256(file)]


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_note(note: Path) -> dict[str, Any]:
    """Empty when there is none, or one that can't be read: hashes can always be made again."""
    try:
        fields = json.loads(note.read_bytes())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}
