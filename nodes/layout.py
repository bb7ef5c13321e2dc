"""How a model lies in a folder of Hugging Face's layout: which files there are and where each tensor is in them.

Headers, names and sizes only; no tensor is read. A file that isn't as it should be is refused here, by its name and
the tensor's, because what reads tensors later trusts these figures.
"""

from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TEXT_FILES = (
    *(INDEX, "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    *("vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
)
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64"), 8),
    **dict.fromkeys(("F32", "I32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL"), 1),
}
_NUMBERED = re.compile(r"model-\d+-of-\d+\.safetensors")


class ModelError(Exception):
    """The model's files can't be served as they are: their owner's to mend. The text names the file."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies: `num_bytes` from `start`, counted from the beginning of its file."""

    file: str
    num_elements: int
    num_bytes: int
    start: int = 0


@dataclass(frozen=True)
class Contents:
    """The tensors of a folder, and those that its index places in files that aren't there."""

    tensors: Mapping[str, Tensor]
    absent: Mapping[str, str]  # tensor to file


def read_contents(path: Path) -> Contents:
    """Each file's header is checked against its size and the index. Raises ModelError."""
    index = read_index(path)
    named = sorted(set(index.values()) or {SINGLE})
    present = [file for file in named if (path / file).is_file()]
    _check_strays(path, set(named))
    if not present:
        lost = f"; with it tensor {next(iter(index))} and {len(index) - 1} more" if index else ""
        raise ModelError(f"{path / named[0]} is missing{lost}")
    tensors: dict[str, Tensor] = {}
    for file in present:
        for name, tensor in read_header(path / file).items():
            if name in tensors and name not in index:
                raise ModelError(f"tensor {name} is both in {path / tensors[name].file} and in {file}")
            if index.get(name, file) == file:
                tensors[name] = tensor
    for name, file in index.items():
        if file in present and name not in tensors:
            raise ModelError(f"{path / file} lacks tensor {name}, which {INDEX} places there")
    return Contents(tensors, {name: file for name, file in index.items() if file not in present})


def weight_files(path: Path) -> list[str]:
    """The names of the files that hold the model's weights, whether they are there or not. Raises ModelError."""
    return sorted(set(read_index(path).values()) or {SINGLE})


def read_index(path: Path) -> dict[str, str]:
    """Tensor to file; empty for a model in a single file. Raises ModelError."""
    if not (path / INDEX).exists():
        return {}
    places = read_json(path / INDEX).get("weight_map")
    if not places or not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ModelError(f"{path / INDEX} has no weight_map of file names")
    for file in places.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelError(f"{path / INDEX} names {file!r}, which isn't a safetensors file of this folder")
    return places


def _check_strays(path: Path, named: set[str]) -> None:
    """Files beside the model's are let lie, but for those that raise the question which model this is."""
    strays = sorted(file.name for file in path.glob("*.safetensors") if file.name not in named)
    if SINGLE in strays:
        raise ModelError(f"{path} holds two models, {SINGLE} and the files of {INDEX}: remove one of them")
    for file in strays:
        if _NUMBERED.fullmatch(file):
            reason = f"{INDEX} doesn't name it" if (path / INDEX).exists() else f"there is no {INDEX}"
            raise ModelError(f"{path / file} is stray: {reason}; another model's file, or a lost index")
    if strays:
        logger.info("%s: %s isn't the model's, and is left alone", path, ", ".join(strays))


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file: 8 bytes of length N, little endian | N bytes of JSON | data.

    Raises ModelError where they don't fill the file exactly.
    """
    size = file.stat().st_size
    with open(file, "rb") as stream:
        length = header_length(stream.read(8), size, file)
        raw = stream.read(length)
    base = 8 + length
    try:
        entries = {name: entry for name, entry in json.loads(raw).items() if name != "__metadata__"}
    except (ValueError, RecursionError, AttributeError) as error:
        raise ModelError(f"{file} is not safetensors: {error!r} in its header") from None
    tensors = {name: _tensor(file, name, entry, base) for name, entry in entries.items()}
    _check_that_they_fill(file, tensors, base, size)
    return tensors


def header_length(prefix: bytes, size: int, file: Path) -> int:
    """From a file's first 8 bytes. Raises ModelError when such a header doesn't fit into a file of `size` bytes."""
    length = int(struct.unpack("<Q", prefix)[0]) if len(prefix) == 8 else size
    if 8 + length > size or length > MAX_HEADER_BYTES:
        raise ModelError(f"{file} is truncated or not safetensors: {size} bytes, its header ends at {8 + length}")
    return length


def _tensor(file: Path, name: str, entry: Any, base: int) -> Tensor:
    try:
        (start, end), shape, dtype = entry["data_offsets"], entry["shape"], entry["dtype"]
        numbers = [start, end, *shape]
        if not all(type(number) is int and number >= 0 for number in numbers) or not isinstance(dtype, str):
            raise ValueError(numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{file} is not safetensors: tensor {name} is described as {entry!r} ({error!r})") from None
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"{file}: tensor {name} is of type {dtype}, which isn't supported; use the unquantized model")
    needed = prod(shape) * DTYPE_BYTES[dtype]
    if end - start != needed:
        raise ModelError(f"{file}: tensor {name} of shape {shape} needs {needed} bytes and has {end - start}")
    return Tensor(file.name, prod(shape), end - start, base + start)


def _check_that_they_fill(file: Path, tensors: Mapping[str, Tensor], base: int, size: int) -> None:
    """Each tensor begins where the one before ends, and the last one ends with the file: so the format wants it."""
    at, last = base, "none"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].num_bytes)):
        if tensor.start != at:
            raise ModelError(f"{file} is not safetensors: tensor {name} starts at {tensor.start}, not at {at}")
        at, last = tensor.start + tensor.num_bytes, name
    if at != size:
        state = "is truncated" if at > size else "is longer than its tensors"
        raise ModelError(f"{file} {state}: {size} bytes, but tensor {last} ends at {at}")


def read_json(file: Path) -> dict[str, Any]:
    """The object in a file. Raises ModelError."""
    try:
        fields = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{file} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ModelError(f"{file} is not a JSON object")
    return fields
