"""This machine's cache: where models and what is known of them are kept, and what those who fill it say."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs
from django.conf import settings

Say = Callable[[str], object]  # takes a line about what is going on


def silent(_line: str) -> None:
    """A Say that says nothing."""


def cache_dir() -> Path:
    """Where models and fingerprints are kept: MESHNET_CACHE_DIR, or the user's cache directory."""
    given = str(getattr(settings, "MESHNET_CACHE_DIR", "") or "")
    return Path(given).expanduser() if given else Path(platformdirs.user_cache_dir("meshnet"))


def use(folder: str | None) -> None:
    """From now on that folder is the cache, where one is named: what a command line says comes before settings."""
    if folder:
        settings.MESHNET_CACHE_DIR = folder


def write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)
