"""What a node keeps between runs: its key, in a folder that only its user reads and only one process uses."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

_KEY_FILE = "node_key"
_LOCK_FILE = "lock"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class StateError(Exception):
    """The state folder can't be used: its owner's to mend."""


class StateInUse(StateError):
    """Another process uses the folder."""


def default_folder(tracker_url: str, name: str) -> Path:
    """One for each tracker and node name, under the user's state folder."""
    parts = (_UNSAFE.sub("_", part) for part in (urlsplit(tracker_url).netloc, name))
    return platformdirs.user_state_path("meshnet").joinpath(*parts)


class NodeState:
    """The folder, locked until `close` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = -1

    def open(self) -> None:
        """Makes the folder and locks it. Raises StateError, StateInUse naming the process."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            self._lock = os.open(self.folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"the state folder {self.folder} can't be used: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            self.close()
            raise StateInUse(f"a node with the state folder {self.folder} is running already (pid {pid})") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def read_key(self) -> str | None:
        path = self.folder / _KEY_FILE
        try:
            key = path.read_text().strip()
            path.chmod(0o600)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"{path} can't be read: {error}") from None
        return key or None

    def write_key(self, key: str) -> None:
        """Whole or not at all."""
        path, new = self.folder / _KEY_FILE, self.folder / f"{_KEY_FILE}.new"
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(key + "\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            raise StateError(f"{path} can't be written: {error.strerror}") from None
