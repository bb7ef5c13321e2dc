"""A model of a hub as a folder of the cache, in which the tensors of the layers that were asked for are present.

The folder is named after the model and its fingerprint, and grows when other layers are asked for later. Config,
tokenizer and index are whole; the files of weights are sparse (sparse.py), their headers always there.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from nodes import layout, storage, weights
from nodes.hub import cache as hub_cache
from nodes.hub.client import Hub
from nodes.hub.fetch import Fetcher, HubUnreachable, Patience, Tick, no_tick
from nodes.hub.listing import HubFile, HubId, Listing
from nodes.hub.making import fetch_header, has_header, make_folder
from nodes.hub.notes import Notes
from nodes.hub.spans import Span, merged, num_bytes
from nodes.hub.sparse import RECORDS, Record, SparseFile
from nodes.layout import ModelError
from nodes.locks import locked
from nodes.weights import ORIGIN, ModelFolder, Progress, no_progress

logger = logging.getLogger(__name__)

LOCK_PATIENCE_S = 600.0  # without progress of the process that holds it
FIRST_PATIENCE_S = 60.0  # for a hub's first answer, while nothing has come that would be lost
CACHED_PATIENCE_S = 15.0  # for news of a branch of which a commit is in the cache
SPARE_DISK_BYTES = 64 << 20
LOCK = ".lock"


@dataclass(frozen=True)
class HubFolder(ModelFolder):
    hub: Hub
    listing: Listing

    def prepare(self, start_layer: int, end_layer: int, progress: Progress = no_progress) -> None:
        """Fetches what the cache lacks of these layers. Raises ModelError, HubUnreachable, OSError, LockTimeout."""
        wanted = self._spans(start_layer, end_layer)
        total = sum(num_bytes(spans) for spans in wanted.values())

        def done() -> int:
            """Looks at the records: also what another process has fetched meanwhile."""
            missing = sum(num_bytes(self._record(name).missing(spans)) for name, spans in wanted.items())
            progress(total - missing, total)
            return total - missing

        if done() == total and all(self._is_settled(name) for name in wanted):
            return
        with locked(self.path / LOCK, LOCK_PATIENCE_S, done):
            before = done()
            _check_disk(self.path, total - before)
            self._fetch(wanted, _Counter(progress, before, total))
        logger.info(
            "Fetched %.1f MB; layers %d–%d are %.1f of the model's %.1f MB",
            (total - before) / 1e6,
            start_layer,
            end_layer - 1,
            total / 1e6,
            sum(self.listing.files[name].size for name in layout.weight_files(self.path)) / 1e6,
        )

    def _fetch(self, wanted: dict[str, list[Span]], counter: _Counter) -> None:
        fetcher = Fetcher(self.hub, self.listing)
        for name, spans in wanted.items():
            with SparseFile(self.path / name, self.listing.files[name].size) as file:
                fetcher.fill(file, spans, counter)
            expected = {tensor: place for tensor, place in self.tensors.items() if place.file == name}
            if layout.read_header(self.path / name) != expected:
                raise ModelError(f"{self.path / name} has another header than before; start again")

    def _spans(self, start_layer: int, end_layer: int) -> dict[str, list[Span]]:
        """By file: its header and the layers' tensors."""
        spans: dict[str, list[Span]] = {}
        for tensor in self.tensors_of(start_layer, end_layer).values():
            header = (0, min(place.start for place in self.tensors.values() if place.file == tensor.file))
            spans.setdefault(tensor.file, [header]).append((tensor.start, tensor.start + tensor.num_bytes))
        return {name: merged(found) for name, found in sorted(spans.items())}

    def _record(self, name: str) -> Record:
        return Record.read(self.path / name, self.listing.files[name].size)

    def _is_settled(self, name: str) -> bool:
        """Nothing is left to check of it."""
        listed, record = self.listing.files[name], self._record(name)
        return record.is_verified or not listed.sha256 or not record.is_complete(listed.size)


class _Counter:
    def __init__(self, progress: Progress, done: int, total: int) -> None:
        self._progress, self._done, self._total = progress, done, total

    def __call__(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total)


def open_hub(
    model: HubId, say: storage.Say = storage.silent, hub: Hub | None = None, tick: Tick = no_tick
) -> ModelFolder:
    """The model's folder; made, which fetches config, tokenizer and headers, if it isn't there yet.

    What huggingface_hub has downloaded whole is used as it is. Raises ModelError, HubUnreachable, OSError.
    """
    hub = hub or Hub.of_environment()
    notes = Notes(hub, model.name)
    commit = model.revision if model.is_pinned else notes.commit_of(model.revision)
    path = notes.folder_of(commit)
    if path and (model.is_pinned or hub.is_offline):
        return reopen(path, hub)
    if hub.is_offline and (downloaded := hub_cache.find(model)):
        return _open_downloaded(downloaded, say)
    try:
        listing = Patience(CACHED_PATIENCE_S if path else FIRST_PATIENCE_S).repeat(lambda: hub.list(model), tick)
    except HubUnreachable as error:
        if path is None:
            raise HubUnreachable(f"{model} can't be had: {error}") from None
        logger.warning("%s; going on with commit %s of %s from the cache", error, commit[:12], model)
        return reopen(path, hub)
    path = notes.folder_of(listing.commit)
    if path is None and (downloaded := hub_cache.find_listed(listing)):
        return _open_downloaded(downloaded, say)
    if path is None:
        with locked(notes.path.with_suffix(".lock"), LOCK_PATIENCE_S, lambda: tick(0)):
            path = notes.folder_of(listing.commit) or make_folder(hub, listing, say, tick)
            notes.add_folder(listing.commit, path)
    notes.add_revision(model.revision, listing.commit)
    return reopen(path, hub)


def _open_downloaded(path: Path, say: storage.Say) -> ModelFolder:
    say(f"Taking what was downloaded before, in {path}")
    return weights.open_folder(path)


def is_hub_folder(path: Path) -> bool:
    """Whether holes in the files of this folder are to be filled from a hub."""
    return (path / RECORDS).is_dir()


def reopen(path: Path, hub: Hub | None = None) -> HubFolder:
    """The folder of an earlier open_hub. Raises ModelError."""
    origin = layout.read_json(path / ORIGIN)
    try:
        files = {name: HubFile(int(fields["size"]), str(fields["sha256"])) for name, fields in origin["files"].items()}
        listing = Listing(str(origin["name"]), str(origin["commit"]), files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path / ORIGIN} can't be read ({error!r}): delete {path} to fetch it anew") from None
    hub = hub or Hub.of_environment()
    for name in set(layout.weight_files(path)) & set(files):
        if not has_header(path / name, files[name].size):  # the file was thrown away, or its record
            with locked(path / LOCK, LOCK_PATIENCE_S):
                fetch_header(Fetcher(hub, listing), path / name, files[name])
    contents = layout.read_contents(path)
    return HubFolder(path, weights.read_config(path), contents.tensors, hub, listing, absent=contents.absent)


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + SPARE_DISK_BYTES > free:
        words = f"{needed / 1e9:.1f} GB more are to be fetched into {folder}, and {free / 1e9:.1f} GB are free there"
        raise OSError(f"{words}: make room, or name a folder on another disk in MESHNET_CACHE_DIR")
