"""How a hub's models and their files are called, and what is known of them before anything of them has come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w.-]+(?:/[\w.-]+)*))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubId:
    """A model of a hub: `org/name`, perhaps with `@` and a branch, tag or commit."""

    name: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        return bool(_COMMIT.fullmatch(self.revision))

    @classmethod
    def read(cls, text: str) -> HubId | None:
        """None for what can't be one."""
        found = None if text.endswith((".gguf", ".safetensors")) else _ID.fullmatch(text)
        try:
            validate_repo_id(found[1] if found else "")
        except HFValidationError:
            return None
        return cls(found[1], found[2] or "main") if found else None


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it. `sha256` and `git_sha1` may be unknown, which is empty."""

    size: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True)
class Listing:
    """A model's files at one commit."""

    name: str
    commit: str
    files: Mapping[str, HubFile]


def read_listing(model: HubId, fields: Any) -> Listing:
    """Raises ValueError, KeyError, TypeError or AttributeError for what no hub says."""
    if not _COMMIT.fullmatch(fields["sha"]):
        raise ValueError(fields["sha"])
    files = {}
    for entry in fields["siblings"]:
        lfs = entry.get("lfs") or {}
        sha256, size = str(lfs.get("sha256") or ""), entry.get("size", lfs.get("size"))
        if sha256 and not SHA256.fullmatch(sha256):
            raise ValueError(sha256)
        if type(size) is int and size >= 0:
            # What an LFS file's blob id is the hash of is the pointer to it.
            files[str(entry["rfilename"])] = HubFile(size, sha256, "" if lfs else str(entry.get("blobId") or ""))
    return Listing(model.name, fields["sha"], files)
