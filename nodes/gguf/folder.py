"""A GGUF file as a model's folder: Hugging Face's layout in the cache, with the layers this machine has served.

One file of safetensors holds a layer, the embedding, or norm and head. Each is made when a shard first needs it; the
nodes of one machine share them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nodes import fingerprint, storage, weights
from nodes.gguf import config as gguf_config
from nodes.gguf import conversion as gguf_conversion
from nodes.gguf.file import GgufFile, check_types, read_header
from nodes.gguf.names import Named, named_tensors
from nodes.gguf.tokenizer import save_tokenizer
from nodes.locks import locked
from nodes.weights import INDEX, ORIGIN, ModelFolder, Progress, Tensor, layer_of, no_progress

logger = logging.getLogger(__name__)

LOCK_PATIENCE_S = 600.0  # without progress of the process that holds it
LAYOUT = 1  # raised when the same file would be converted otherwise

_LOCKS = ".locks"  # in the folder: one for each file that several processes may want to make

Parts = Mapping[str, Sequence[Named]]  # the tensors of each file of safetensors


@dataclass(frozen=True, kw_only=True)
class GgufFolder(ModelFolder):
    """A folder of the cache and the file that fills it."""

    file: GgufFile
    parts: Parts

    def prepare(self, start_layer: int, end_layer: int, progress: Progress = no_progress) -> None:
        """Makes the files of these layers that aren't there. `progress` is told bytes of the GGUF file."""
        wanted = {tensor.file for tensor in self.tensors_of(start_layer, end_layer).values()}
        if num_bytes := _make(self.file, self.parts, wanted, self.path, progress):
            whole, layers = self.file.changed_at[0] / 1e6, f"{start_layer}–{end_layer - 1}"
            logger.info("Read %.1f of the %.1f MB of %s for layers %s", num_bytes / 1e6, whole, self.file.path, layers)

    def tokenizer_path(self) -> Path:
        """In a folder of its own: beside some families' config.json transformers would put its own rules in place of
        the file's. Raises ModelError where the file's tokenizer isn't one that is known."""
        folder = self.path / "tokenizer"
        with locked(self.path / _LOCKS / "tokenizer", LOCK_PATIENCE_S):
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=self.path, prefix=".making-") as scratch:
                    made = Path(scratch) / "tokenizer"
                    save_tokenizer(self.file, made)
                    os.rename(made, folder)
        return folder


def open_gguf(path: Path, say: storage.Say = storage.silent) -> GgufFolder:
    """Reads the header only; for the fingerprint, once, every byte. Raises ModelError."""
    file, fields, parts = _describe(path)
    say(f"Opening {path.name}; the first time all of it is read, for its fingerprint")
    digest = fingerprint.of_file(path)
    folder = storage.cache_dir() / "models" / f"gguf-{LAYOUT}-{digest}"
    _write_json(folder / "config.json", fields)
    _write_json(folder / ORIGIN, {"fingerprint": digest, "source": path.name})
    tensors = {
        tensor.name: Tensor(part, tensor.num_elements, 2 * tensor.num_elements)
        for part, members in parts.items()
        for tensor in members
    }
    return GgufFolder(folder, weights.read_config(folder), tensors, file=file, parts=parts)


def convert(path: Path, folder: Path) -> None:
    """The whole model as a folder of Hugging Face's layout. Raises ModelError, OSError."""
    file, fields, parts = _describe(path)
    _write_json(folder / "config.json", fields)
    save_tokenizer(file, folder)
    _make(file, parts, parts.keys(), folder, no_progress)
    shutil.rmtree(folder / _LOCKS)


def _describe(path: Path) -> tuple[GgufFile, dict[str, Any], Parts]:
    """The header, the fields of config.json, and which tensors go into which file."""
    file = read_header(path)
    check_types(file)
    architecture, fields = gguf_config.read_config(file)
    parts: dict[str, list[Named]] = {}
    for tensor in named_tensors(file, architecture, fields):
        parts.setdefault(_part_of(tensor.name), []).append(tensor)
    return file, fields, parts


def _part_of(name: str) -> str:
    """The embedding is apart from norm and head: where it is tied, both ends hold it."""
    layer = layer_of(name)
    if layer is not None:
        return f"layer-{layer:05}.safetensors"
    return "embedding.safetensors" if ".embed_tokens." in name else "head.safetensors"


def _make(file: GgufFile, parts: Parts, wanted: Iterable[str], folder: Path, progress: Progress) -> int:
    """The bytes that were read of the file."""
    sizes = {part: sum(file.tensors[tensor.gguf_name].num_bytes for tensor in parts[part]) for part in sorted(wanted)}
    done, total, num_read = 0, sum(sizes.values()), 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    def sign(target: Path) -> int:
        """That another node of this machine gets on with it."""
        progress(done, total)
        return gguf_conversion.num_bytes_so_far(target)

    for part, size in sizes.items():
        with locked(folder / _LOCKS / part, LOCK_PATIENCE_S, partial(sign, folder / part)):
            if gguf_conversion.is_written(folder / part, parts[part]):
                count(size)
            else:
                num_read += gguf_conversion.write(file, parts[part], folder / part, count)
    with locked(folder / _LOCKS / INDEX, LOCK_PATIENCE_S):
        places = {tensor.name: part for part in parts if (folder / part).exists() for tensor in parts[part]}
        _write_json(folder / INDEX, {"metadata": {}, "weight_map": places})
    return num_read


def _write_json(path: Path, fields: Mapping[str, Any]) -> None:
    storage.write_atomically(path, json.dumps(fields, indent=1).encode())
