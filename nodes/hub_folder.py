"""A model of a hub as a folder of the cache, in which the tensors of the layers that were asked for are present.

The folder is named after the model and its fingerprint, and grows when other layers are asked for later. Config,
tokenizer and index are whole; the files of weights are sparse (sparse.py), their headers always there. Beside the
folders, a note for each model says which commit its branches were at and which folder a commit's files are in.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodes import catalog, fingerprint, layout, weights
from nodes.fetch import NO_PROGRESS_DEADLINE_S, Fetcher, HubUnreachable, Patience, Tick, no_tick
from nodes.hub import Hub, HubFile, HubId, Listing
from nodes.layout import INDEX, TEXT_FILES, ModelError
from nodes.locks import locked
from nodes.spans import Span, merged, num_bytes
from nodes.sparse import RECORDS, Record, SparseFile
from nodes.weights import ORIGIN, ModelFolder, Progress, no_progress

logger = logging.getLogger(__name__)

HEADER_GUESS_BYTES = 16 << 10  # most headers are shorter: one request instead of two
LOCK_PATIENCE_S = 600.0  # without progress of the process that holds it
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
    model: HubId, say: catalog.Say = catalog.silent, hub: Hub | None = None, tick: Tick = no_tick
) -> HubFolder:
    """The model's folder; made, which fetches config, tokenizer and headers, if it isn't there yet.

    Raises ModelError, HubUnreachable, OSError.
    """
    hub = hub or Hub.of_environment()
    notes = _Notes(hub, model.name)
    commit = model.revision if model.is_pinned else notes.commit_of(model.revision)
    path = notes.folder_of(commit)
    if path and (model.is_pinned or hub.is_offline):
        return reopen(path, hub)
    try:
        listing = Patience(CACHED_PATIENCE_S if path else NO_PROGRESS_DEADLINE_S).repeat(lambda: hub.list(model), tick)
    except HubUnreachable as error:
        if path is None:
            raise
        logger.warning("%s; going on with commit %s of %s from the cache", error, commit[:12], model)
        return reopen(path, hub)
    path = notes.folder_of(listing.commit)
    if path is None:
        with locked(notes.path.with_suffix(".lock"), LOCK_PATIENCE_S, lambda: tick(0)):
            path = notes.folder_of(listing.commit) or _make(hub, listing, say, tick)
            notes.add_folder(listing.commit, path)
    notes.add_revision(model.revision, listing.commit)
    return reopen(path, hub)


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
    for name in layout.weight_files(path):
        if not _has_header(path / name, files[name].size):  # the file was thrown away, or its record
            with locked(path / LOCK, LOCK_PATIENCE_S):
                _fetch_header(Fetcher(hub, listing), path / name, files[name])
    contents = layout.read_contents(path)
    return HubFolder(path, weights.read_config(path), contents.tensors, hub, listing, absent=contents.absent)


def _make(hub: Hub, listing: Listing, say: catalog.Say, tick: Tick) -> Path:
    """Fetches what every shard needs. Whatever refuses the model does so before the headers are fetched."""
    models = catalog.cache_dir() / "models"
    scratch, fetcher = models / f".making-{_in_a_name(listing.name)}", Fetcher(hub, listing)
    say(f"Fetching config, tokenizer and headers of {listing.name} at {listing.commit[:12]} from {hub.endpoint}")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was ended
    scratch.mkdir(parents=True)
    hashes = dict(_fetch_texts(fetcher, listing, scratch, tick))
    weights.read_config(scratch)
    for name in _weight_files(listing, scratch):
        hashes[name] = _fetch_header(fetcher, scratch / name, listing.files[name], tick)
    layout.read_contents(scratch)
    digest = fingerprint.combine(hashes.items())
    files = {name: {"size": listing.files[name].size, "sha256": found} for name, found in hashes.items()}
    origin = {"fingerprint": digest, "source": f"{listing.name}@{listing.commit}", "name": listing.name}
    origin |= {"commit": listing.commit}
    (scratch / ORIGIN).write_text(json.dumps(origin | {"files": files}, indent=1))
    path = models / f"{_in_a_name(listing.name)}--{digest[:16]}"
    if (path / ORIGIN).exists():  # another commit with the same files
        shutil.rmtree(scratch)
    else:
        shutil.rmtree(path, ignore_errors=True)
        scratch.rename(path)
    return path


def _fetch_texts(fetcher: Fetcher, listing: Listing, folder: Path, tick: Tick) -> Iterator[tuple[str, str]]:
    """Each file's (name, SHA-256)."""
    for name in sorted(set(TEXT_FILES) & set(listing.files)):
        (folder / name).write_bytes(fetcher.read(name, tick))
        yield name, fingerprint.sha256(folder / name)


def _weight_files(listing: Listing, folder: Path) -> list[str]:
    names = layout.weight_files(folder)
    for name in names:
        if name not in listing.files:
            other = sorted(file for file in listing.files if file.endswith((".gguf", ".bin", ".pth", ".safetensors")))
            has = f"it has {', '.join(other[:3])}" if other else "it has no weights"
            wanted = f"which its {INDEX} names" if (folder / INDEX).exists() else "nor an index of several"
            hint = "; a GGUF file can be served when it is downloaded" if any(".gguf" in file for file in other) else ""
            raise ModelError(f"{listing.name} has no {name}, {wanted}; {has}{hint}")
    return names


def _fetch_header(fetcher: Fetcher, path: Path, listed: HubFile, tick: Tick = no_tick) -> str:
    """The file's SHA-256: as listed, or computed, for which all of it is fetched."""
    with SparseFile(path, listed.size) as file:
        if not listed.sha256:
            fetcher.fill(file, [(0, listed.size)], tick)
        fetcher.fill(file, [(0, min(listed.size, HEADER_GUESS_BYTES))], tick)
        fetcher.fill(file, [(0, _header_end(path, listed.size))], tick)
    return listed.sha256 or fingerprint.sha256(path)


def _header_end(path: Path, size: int) -> int:
    with open(path, "rb") as stream:
        return 8 + layout.header_length(stream.read(8), size, path)


def _has_header(path: Path, size: int) -> bool:
    record = Record.read(path, size)
    return not record.missing([(0, 8)]) and not record.missing([(0, _header_end(path, size))])


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + SPARE_DISK_BYTES > free:
        words = f"{needed / 1e9:.1f} GB more are to be fetched into {folder}, and {free / 1e9:.1f} GB are free there"
        raise OSError(f"{words}: make room, or name a folder on another disk in MESHNET_CACHE_DIR")


def _in_a_name(model: str) -> str:
    return model.replace("/", "--")


class _Notes:
    """What is known of one model of one hub: {"revisions": {branch: commit}, "folders": {commit: folder's name}}."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.path = catalog.cache_dir() / "hub" / hub.host / f"{_in_a_name(name)}.json"

    def commit_of(self, revision: str) -> str:
        """Empty when it isn't known."""
        return str(self._read()["revisions"].get(revision, ""))

    def folder_of(self, commit: str) -> Path | None:
        name = self._read()["folders"].get(commit)
        path = catalog.cache_dir() / "models" / str(name)
        return path if name and (path / ORIGIN).exists() else None

    def add_folder(self, commit: str, path: Path) -> None:
        self._add("folders", commit, path.name)

    def add_revision(self, revision: str, commit: str) -> None:
        if self.commit_of(revision) != commit:
            self._add("revisions", revision, commit)

    def _add(self, kind: str, key: str, value: str) -> None:
        fields = self._read()
        fields[kind][key] = value
        catalog.write_atomically(self.path, json.dumps(fields, indent=1).encode())

    def _read(self) -> dict[str, dict[str, Any]]:
        """Nothing where there is no note, or none that can be read: it can always be made again."""
        try:
            fields = json.loads(self.path.read_bytes())
            return {"revisions": dict(fields["revisions"]), "folders": dict(fields["folders"])}
        except (OSError, ValueError, KeyError, TypeError):
            return {"revisions": {}, "folders": {}}
