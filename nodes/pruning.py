"""What the cache of models holds, how much of the disk that takes, and making room. What is in use is left alone."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nodes import layout, uses
from nodes.weights import ORIGIN

logger = logging.getLogger(__name__)

ABANDONED_S = 3600.0  # what was begun and nobody has written to for so long is nobody's
_TAKEN = ".pruned-"


@dataclass(frozen=True)
class Cached:
    """A model's folder, or what was begun and left. `names`: what it may be called by, the best one first."""

    path: Path
    names: tuple[str, ...]
    num_bytes: int
    is_used: bool


def cached_models() -> list[Cached]:
    """The largest first."""
    folders = [path for path in _entries() if not path.name.startswith(".")]
    return sorted(map(_read, folders), key=lambda model: -model.num_bytes)


def abandoned() -> list[Cached]:
    """What processes that were ended have left half done."""
    begun = [path for path in _entries() if path.name.startswith((".making-", _TAKEN))]
    old = [path for path in begun if time.time() - _last_written(path) > ABANDONED_S]
    return [Cached(path, (path.name,), _num_bytes(path), is_used=False) for path in old]


def prunable(keep: Collection[str]) -> list[Cached]:
    """What may go: all that nobody uses and that isn't kept by one of its names."""
    models = [model for model in cached_models() if not model.is_used and not set(model.names) & set(keep)]
    return models + abandoned()


def take_away(model: Cached) -> bool:
    """Deletes it; False where somebody has begun to use it. Raises OSError."""
    with uses.free_to_take(model.path) as is_free:
        if not is_free:
            return False
        taken = model.path.with_name(f"{_TAKEN}{model.path.name.lstrip('.')}")
        shutil.rmtree(taken, ignore_errors=True)  # of a process that was ended in the middle of this
        model.path.rename(taken)
    shutil.rmtree(taken)
    return True


def say_what_is_kept() -> None:
    """A line for the log of a node that starts; a cache that can't be looked at stops none."""
    with suppress(OSError):
        if models := cached_models():
            logger.info("%s in %s; `manage.py fetchmodel --prune` makes room", in_words(models), uses.models_folder())


def in_words(models: Collection[Cached]) -> str:
    many = "1 model takes" if len(models) == 1 else f"{len(models)} models take"
    return f"{many} {gigabytes(sum(model.num_bytes for model in models))}"


def gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def _entries() -> Iterator[Path]:
    folder = uses.models_folder()
    return (path for path in sorted(folder.iterdir()) if path.is_dir()) if folder.is_dir() else iter(())


def _read(path: Path) -> Cached:
    with uses.free_to_take(path) as is_free:
        return Cached(path, tuple(dict.fromkeys(_names(path))), _num_bytes(path), not is_free)


def _names(path: Path) -> Iterator[str]:
    try:
        origin = layout.read_json(path / ORIGIN)
    except layout.ModelError:
        origin = {}
    source = str(origin.get("source", ""))
    if name := origin.get("name"):  # of a hub's model
        yield str(name)
    elif source.endswith(".gguf") and "/" not in source:
        yield source.removesuffix(".gguf")
    yield from filter(None, (path.name, source))


def _num_bytes(path: Path) -> int:
    """On the disk, where the holes of sparse files take nothing."""
    return sum(found.st_blocks * 512 for found in _files(path))


def _last_written(path: Path) -> float:
    return max((found.st_mtime for found in _files(path)), default=0.0)


def _files(path: Path) -> Iterator[os.stat_result]:
    """Also of a folder that somebody works in: what is renamed meanwhile is passed over."""
    for folder, _, files in os.walk(path):
        for name in (".", *files):
            with suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name))
