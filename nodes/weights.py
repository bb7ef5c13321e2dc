"""A model's files in one folder: what they are, whether they are whole, and what makes two copies the same.

Everything here reads headers, names and sizes; the tensors themselves are read by shard.py, only those of its layers.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nodes import catalog, fingerprint

# Model families (`model_type` of config.json) that a parity test in tests/nodes/test_shard.py proves.
FAMILIES = ("llama",)
# Rotary embeddings that depend on the position alone. "dynamic" and "longrope" also depend on what came before.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

INDEX = "model.safetensors.index.json"
ORIGIN = "meshnet.json"  # beside converted weights: {"fingerprint", "source"} of what they were converted from
_TEXT_FILES = (
    *(INDEX, "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    *("vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
)
_NUMBERED = re.compile(r"model-\d+-of-\d+\.safetensors")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class ModelError(Exception):
    """The model's files can't be served as they are: their owner's to mend. The text names the file."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies."""

    file: str
    num_elements: int
    num_bytes: int


@dataclass(frozen=True)
class ModelFolder:
    """A folder of safetensors, config and tokenizer whose headers have been checked."""

    path: Path
    config: Any  # transformers.PretrainedConfig
    tensors: Mapping[str, Tensor]

    @property
    def family(self) -> str:
        return str(self.config.model_type)

    @property
    def num_layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def context_length(self) -> int:
        return int(self.config.max_position_embeddings)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, hex, of what the model's source is; reads every byte the first time, then sizes and times only."""
        if (self.path / ORIGIN).exists():
            return str(read_json(self.path / ORIGIN)["fingerprint"])
        return fingerprint.of_folder(self.path, [*_weight_files(self.path), *_TEXT_FILES])

    def num_elements(self, start_layer: int, end_layer: int) -> int:
        """Numbers in the tensors that a shard of these layers holds."""
        is_tail = end_layer == self.num_layers
        has_embedding = start_layer == 0 or (is_tail and self.config.tie_word_embeddings)

        def is_held(name: str) -> bool:
            layer = layer_of(name)
            if layer is not None:
                return start_layer <= layer < end_layer
            return has_embedding if ".embed_tokens." in name else is_tail

        return sum(tensor.num_elements for name, tensor in self.tensors.items() if is_held(name))


def layer_of(name: str) -> int | None:
    """The layer a tensor belongs to; None for embedding, final norm and head."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def open_model(source: str | os.PathLike[str], say: catalog.Say = catalog.silent) -> ModelFolder:
    """The model in a folder, or of a catalogue name (fetched first if need be). Raises ModelError."""
    if str(source) in catalog.ENTRIES:
        try:
            path = catalog.ensure(str(source), say)
        except (catalog.CatalogError, OSError) as error:
            raise ModelError(str(error)) from error
    else:
        path = Path(source).expanduser().resolve()
    if not path.is_dir():
        known = ", ".join(sorted(catalog.ENTRIES))
        raise ModelError(f"{source} is neither a folder nor a model of the catalogue ({known})")
    return ModelFolder(path, _read_config(path), _read_tensors(path))


def _read_config(path: Path) -> Any:
    fields = read_json(path / "config.json")
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise ModelError(f"{path / 'config.json'}: model_type {family!r} isn't supported; {', '.join(FAMILIES)} is")
    if "quantization_config" in fields:
        raise ModelError(f"{path / 'config.json'}: quantized weights aren't supported; use the unquantized model")
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig  # seconds to import: only once there is a model to open

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, TypeError, KeyError, OSError, StrictDataclassError) as error:
        raise ModelError(f"{path / 'config.json'} can't be used: {error}") from error
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        raise ModelError(f"{path / 'config.json'}: rope type {rope!r} isn't supported; {', '.join(ROPE_TYPES)} are")
    return config


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of the folder, each file's header checked against its size and the index."""
    files = _weight_files(path)
    tensors = {name: tensor for file in files for name, tensor in _read_header(path / file).items()}
    for name, file in _read_index(path).items():
        if name not in tensors or tensors[name].file != file:
            raise ModelError(f"{path / file} lacks tensor {name}, which {INDEX} places there")
    return tensors


def _weight_files(path: Path) -> list[str]:
    present = {file.name for file in path.glob("*.safetensors")}
    named = set(_read_index(path).values()) or {"model.safetensors"}
    for file in sorted(named - present):
        tensors = [name for name, at in _read_index(path).items() if at == file]
        lost = f"; with it tensor {tensors[0]} and {len(tensors) - 1} more" if tensors else ""
        raise ModelError(f"{path / file} is missing{lost}")
    for file in sorted(present - named):
        if _NUMBERED.fullmatch(file):
            raise ModelError(f"{path / file} is stray: {INDEX} doesn't name it; another model's file, or a lost index")
    return sorted(named)


def _read_index(path: Path) -> dict[str, str]:
    """Tensor to file; empty for a model in a single file."""
    if not (path / INDEX).exists():
        return {}
    places = read_json(path / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ModelError(f"{path / INDEX} has no weight_map of file names")
    for file in places.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelError(f"{path / INDEX} names {file!r}, which isn't a safetensors file of this folder")
    return places


def _read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file: 8 bytes of length N, little endian | N bytes of JSON | data."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size or length > _MAX_HEADER_BYTES:
            raise ModelError(f"{file} is truncated or not safetensors: {size} bytes, its header ends at {8 + length}")
        raw = stream.read(length)
    try:
        header = {name: entry for name, entry in json.loads(raw).items() if name != "__metadata__"}
        spans = {name: (*entry["data_offsets"], entry["shape"]) for name, entry in header.items()}
        ends = [8 + length + end for _, end, _ in spans.values()]
        tensors = {name: Tensor(file.name, _product(shape), end - start) for name, (start, end, shape) in spans.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file} is not safetensors: {error!r} in its header") from None
    if max(ends, default=8 + length) != size:
        last = max(spans, key=lambda name: spans[name][1], default="none")
        raise ModelError(f"{file} is truncated: {size} bytes, but tensor {last} ends at {max(ends, default=0)}")
    return tensors


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def read_json(file: Path) -> dict[str, Any]:
    try:
        fields = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{file} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ModelError(f"{file} is not a JSON object")
    return fields
