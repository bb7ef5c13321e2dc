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

from nodes.layout import ModelError, Tensor
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
        """Raises ModelError naming a tensor that holds no floating point numbers: packed weights look like those."""
        for name, tensor in self._tensors.items():
            if not self._file(tensor.file).places[name].dtype.is_floating_point:
                raise ModelError(f"tensor {name} in {tensor.file} holds no floating point numbers")
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
        with self._reading:
            return self._file(self._tensors[name].file).read(name)

    def _file(self, name: str) -> TensorFile:
        if name not in self._files:
            self._files[name] = TensorFile(self._path / name)
        return self._files[name]
