"""A folder's tensors as transformers takes a state dict, each read only when it is asked for.

transformers renames and fuses what it is given (the experts of a layer are one tensor in its modules) and asks for
those tensors alone that the model has room for. So a shard is read and nothing else, and what isn't there isn't missed.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType

import torch

from nodes.layout import Tensor
from nodes.tensors import TensorFile


class LazyTensor:
    """Stands for a tensor in a state dict; `tensor[...]` reads it."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._checkpoint, self._name = checkpoint, name

    def __getitem__(self, everything: EllipsisType) -> torch.Tensor:
        return self._checkpoint.read(self._name)


class Checkpoint:
    """Tensors of a folder, to be read. A context. `num_bytes_read` counts data, not headers."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self._path, self._tensors = path, tensors
        self._files: dict[str, TensorFile] = {}
        self._reading = threading.Lock()  # transformers reads from several threads

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        for file in self._files.values():
            file.__exit__(*exc)

    @property
    def num_bytes_read(self) -> int:
        return sum(file.num_bytes_read for file in self._files.values())

    def state_dict(self) -> dict[str, LazyTensor]:
        return {name: LazyTensor(self, name) for name in self._tensors}

    def read(self, name: str) -> torch.Tensor:
        file = self._tensors[name].file
        with self._reading:
            if file not in self._files:
                self._files[file] = TensorFile(self._path / file)
            return self._files[file].read(name)
