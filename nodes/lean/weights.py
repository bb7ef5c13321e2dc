"""Reads a shard's tensors for the lean executor: by name, each straight to where it stays."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import torch
from tqdm import tqdm

from nodes.lean import layout as lean_layout
from nodes.lean.block import Block, RmsNorm
from nodes.lean.config import LeanConfig
from nodes.lean.layout import EMBEDDING, HEAD, NORM, Layout, Product, Shape
from nodes.lean.rope import paired_rows
from nodes.linear import TABLES, Linear, keeps, make_linear
from nodes.tensors import TensorFile
from nodes.weights import ModelError, ModelFolder


@dataclass(frozen=True, slots=True)
class LeanWeights:
    """What a shard holds."""

    blocks: list[Block]
    embedding: Linear | None  # its rows, at the head
    norm: RmsNorm | None  # at the tail
    head: Linear | None  # at the tail
    num_bytes_read: int


def read_weights(
    folder: ModelFolder,
    config: LeanConfig,
    layers: tuple[int, int],
    dtype: torch.dtype,
    weights: str,
    progress: bool,
) -> LeanWeights:
    """Raises ModelError naming the tensors that are missing, of another shape or no floating point numbers."""
    wanted = lean_layout.shapes(config, *layers)
    with _Reader(folder, wanted, dtype) as reader:
        # First the largest, while there is nothing else: both its forms are in memory for a moment.
        tables = {
            name: make_linear(reader.whole(name, wanted[name]), None, TABLES[weights], is_table=True)
            for name in (EMBEDDING, HEAD)
            if name in wanted
        }
        norm = reader.norm(NORM, config) if NORM in wanted else None
        makes = _BlockReader(reader, config, weights)
        numbers = tqdm(range(*layers), "Loading layers", disable=not progress)
        blocks = [makes.block(number) for number in numbers]
    return LeanWeights(
        blocks=blocks,
        embedding=tables[EMBEDDING] if layers[0] == 0 else None,
        norm=norm,
        head=None if norm is None else tables[EMBEDDING if config.is_tied else HEAD],
        num_bytes_read=reader.num_bytes_read,
    )


class _Reader:
    """The files in which the wanted tensors are, checked and open. A context."""

    def __init__(self, folder: ModelFolder, wanted: dict[str, Shape], dtype: torch.dtype) -> None:
        self._folder, self._wanted, self._dtype = folder, wanted, dtype
        self._files: dict[str, TensorFile] = {}
        self._open = ExitStack()

    def __enter__(self) -> _Reader:
        _refuse(self._folder, [name for name in self._wanted if name not in self._folder.tensors], "missing")
        with self._open as opening:
            for name in self._wanted:
                file = self._folder.tensors[name].file
                if file not in self._files:
                    self._files[file] = opening.enter_context(TensorFile(self._folder.path / file))
            self._check()
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _check(self) -> None:
        places = {name: self._file(name).places[name] for name in self._wanted}
        wrong = {name: shape for name, shape in self._wanted.items() if places[name].shape != shape}
        _refuse(self._folder, list(wrong), "of another shape than the config's")
        numbers = [name for name, place in places.items() if not place.dtype.is_floating_point]
        _refuse(self._folder, numbers, "of numbers that aren't floating point")

    def _file(self, name: str) -> TensorFile:
        return self._files[self._folder.tensors[name].file]

    def rows(self, name: str, first_row: int, out: torch.Tensor) -> None:
        """As many rows as `out` has, from `first_row` on."""
        try:
            self._file(name).read_rows(name, first_row, out)
        except (EOFError, OSError) as error:
            raise ModelError(f"tensor {name} can't be read: {error}") from error

    @property
    def num_bytes_read(self) -> int:
        return sum(file.num_bytes_read for file in self._files.values())

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype)

    def whole(self, name: str, shape: Shape) -> torch.Tensor:
        tensor = self.empty(*shape)
        self.rows(name, 0, tensor)
        return tensor

    def norm(self, name: str, config: LeanConfig) -> RmsNorm:
        return RmsNorm(self.whole(name, (config.width,)), config.norm_epsilon)


class _BlockReader:
    """Makes blocks of a reader's tensors."""

    def __init__(self, reader: _Reader, config: LeanConfig, weights: str) -> None:
        self._reader, self._config, self._weights = reader, config, weights
        self._layout: Layout = lean_layout.layout_of(config)
        # Where weights are read that are kept in another form. Always the same: many that come and go leave holes.
        self._room = reader.empty(max(product.num_elements for product in self._layout.products))

    def block(self, number: int) -> Block:
        prefix, config, layout = lean_layout.prefix(number), self._config, self._layout
        return Block(
            config,
            number,
            attention_norm=self._reader.norm(prefix + lean_layout.ATTENTION_NORM, config),
            qkv=self._linear(prefix, layout.qkv, config.num_heads + config.num_kv_heads),
            qk_norm=self._qk_norm(prefix) if config.has_qk_norm else None,
            output=self._linear(prefix, layout.output),
            mlp_norm=self._reader.norm(prefix + lean_layout.MLP_NORM, config),
            gate_up=self._linear(prefix, layout.gate_up),
            down=self._linear(prefix, layout.down),
        )

    def _linear(self, prefix: str, product: Product, num_turning_heads: int = 0) -> Linear:
        weight = self._room[: product.out_features * product.in_features].view(product.out_features, -1)
        if keeps(weight, self._weights):
            weight = torch.empty_like(weight)
        bias = self._reader.empty(product.out_features) if product.has_bias else None
        for kind, out in (("weight", weight), ("bias", bias)):
            if out is not None:
                self._fill(prefix, product, kind, out, num_turning_heads)
        return make_linear(weight, bias, self._weights)

    def _fill(self, prefix: str, product: Product, kind: str, out: torch.Tensor, num_turning_heads: int) -> None:
        """The parts' rows one below the other, those of the first heads in the order in which they are turned."""
        start = 0
        for name, num_rows in product.parts:
            part, num_heads = out[start : start + num_rows], num_rows // self._config.head_dim
            num_turned = min(num_heads, max(0, num_turning_heads - start // self._config.head_dim))
            self._read(f"{prefix}{name}.{kind}", part, num_turned)
            start += num_rows

    def _read(self, name: str, out: torch.Tensor, num_turned: int) -> None:
        head_dim = self._config.head_dim
        for rows, first_row in paired_rows(num_turned, head_dim, self._config.num_turning):
            self._reader.rows(name, first_row, out[rows])
        self._reader.rows(name, num_turned * head_dim, out[num_turned * head_dim :])

    def _qk_norm(self, prefix: str) -> RmsNorm:
        """The queries' weight for each of their heads, then the keys'."""
        config, norms = self._config, []
        for name, heads in ((lean_layout.QUERY_NORM, config.num_heads), (lean_layout.KEY_NORM, config.num_kv_heads)):
            norm = self._reader.empty(config.head_dim)
            self._read(prefix + name, norm, 1)
            norms.append(norm.expand(heads, -1))
        return RmsNorm(torch.cat(norms), config.norm_epsilon)


def _refuse(folder: ModelFolder, names: list[str], fault: str) -> None:
    if names:
        files = sorted({folder.tensors[name].file for name in names if name in folder.tensors})
        where = folder.path / files[0] if files else folder.path
        raise ModelError(f"{where}: tensor {', '.join(names[:3])} {fault} ({len(names)} in all)")
