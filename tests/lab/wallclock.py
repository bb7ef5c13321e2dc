"""A process's wall clock, off by as much as a test likes, and set anew while it runs; by libfaketime.

Its monotonic clocks stay true, as they do on a machine whose clock is set.
"""

from __future__ import annotations

from pathlib import Path

LIBRARY = "libfaketimeMT.so.1"
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib")


class WallClock:
    def __init__(self, file: Path, off_s: float = 0.0) -> None:
        self._file = file
        self.set(off_s)

    def set(self, off_s: float) -> None:
        """Whole or not at all: the process reads it at any time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{off_s:+.0f}\n")
        new.replace(self._file)

    @property
    def env(self) -> dict[str, str]:
        """For a process that starts from nothing."""
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",  # times of files stay true, and importing stays fast
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


def library() -> Path:
    found = sorted(path for folder in _FOLDERS for path in Path(folder).glob(f"**/faketime/{LIBRARY}"))
    assert found, f"{LIBRARY} isn't here: make services"
    return found[0]
