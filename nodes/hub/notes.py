"""What this machine knows of a hub's model: which commit a branch was at, and which folder a commit's files are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nodes import storage
from nodes.hub.client import Hub
from nodes.weights import ORIGIN


def in_a_name(model: str) -> str:
    """org/name as part of a file's name."""
    return model.replace("/", "--")


class Notes:
    """What is known of one model of one hub: {"revisions": {branch: commit}, "folders": {commit: folder's name}}."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.path = storage.cache_dir() / "hub" / hub.host / f"{in_a_name(name)}.json"

    def commit_of(self, revision: str) -> str:
        """Empty when it isn't known."""
        return str(self._read()["revisions"].get(revision, ""))

    def folder_of(self, commit: str) -> Path | None:
        name = self._read()["folders"].get(commit)
        path = storage.cache_dir() / "models" / str(name)
        return path if name and (path / ORIGIN).exists() else None

    def add_folder(self, commit: str, path: Path) -> None:
        self._add("folders", commit, path.name)

    def add_revision(self, revision: str, commit: str) -> None:
        if self.commit_of(revision) != commit:
            self._add("revisions", revision, commit)

    def _add(self, kind: str, key: str, value: str) -> None:
        fields = self._read()
        fields[kind][key] = value
        storage.write_atomically(self.path, json.dumps(fields, indent=1).encode())

    def _read(self) -> dict[str, dict[str, Any]]:
        """Nothing where there is no note, or none that can be read: it can always be made again."""
        try:
            fields = json.loads(self.path.read_bytes())
            return {"revisions": dict(fields["revisions"]), "folders": dict(fields["folders"])}
        except (OSError, ValueError, KeyError, TypeError):
            return {"revisions": {}, "folders": {}}
