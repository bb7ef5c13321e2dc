"""The folder of a hub's model as it begins: what every shard needs is fetched, and of the weights only the headers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from nodes import fingerprint, layout, storage, weights
from nodes.hub.client import Hub
from nodes.hub.fetch import Fetcher, Tick, no_tick
from nodes.hub.listing import HubFile, Listing
from nodes.hub.notes import in_a_name
from nodes.hub.sparse import Record, SparseFile
from nodes.layout import INDEX, TEXT_FILES, ModelError
from nodes.weights import ORIGIN

HEADER_GUESS_BYTES = 16 << 10  # most headers are shorter: one request instead of two


def make_folder(hub: Hub, listing: Listing, say: storage.Say, tick: Tick) -> Path:
    """Fetches what every shard needs. Whatever refuses the model does so before the headers are fetched."""
    models = storage.cache_dir() / "models"
    scratch, fetcher = models / f".making-{hub.host}-{in_a_name(listing.name)}", Fetcher(hub, listing)
    say(f"Fetching config, tokenizer and headers of {listing.name} at {listing.commit[:12]} from {hub.endpoint}")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was ended
    scratch.mkdir(parents=True)
    hashes = dict(_fetch_texts(fetcher, listing, scratch, tick))
    weights.read_config(scratch)
    for name in _weight_files(listing, scratch):
        hashes[name] = fetch_header(fetcher, scratch / name, listing.files[name], tick)
    layout.read_contents(scratch)
    digest = fingerprint.combine(hashes.items())
    files = {name: {"size": listing.files[name].size, "sha256": found} for name, found in hashes.items()}
    origin = {"fingerprint": digest, "source": f"{listing.name}@{listing.commit}", "name": listing.name}
    origin |= {"commit": listing.commit}
    (scratch / ORIGIN).write_text(json.dumps(origin | {"files": files}, indent=1))
    path = models / f"{in_a_name(listing.name)}--{digest[:16]}"
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


def fetch_header(fetcher: Fetcher, path: Path, listed: HubFile, tick: Tick = no_tick) -> str:
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


def has_header(path: Path, size: int) -> bool:
    record = Record.read(path, size)
    return not record.missing([(0, 8)]) and not record.missing([(0, _header_end(path, size))])
