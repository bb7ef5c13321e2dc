"""A shard as transformers' own modules: every family that is served, and what the lean executor is measured by.

The shard is the model's own class, cut (cut.py). Its forward is the whole model's, so that whatever a family does to
embeddings before the first layer or to logits after the last is done, once and by its own code: the hop's first layer
is given the hidden states that came in, whatever reaches it, and what its last layer leaves is what goes out.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from nodes.activations import DTYPES
from nodes.modules import experts
from nodes.modules import packed as packed_modules
from nodes.modules import rows as row_caches
from nodes.modules.cache import HopCache
from nodes.modules.checkpoint import Checkpoint
from nodes.modules.cut import PassThrough, cut_class, layers_of
from nodes.shard import Row, Shard
from nodes.weights import ModelError, ModelFolder

# transformers switches tying off for the whole process while it loads; two loads at once leave it off for ever.
_LOADING = threading.Lock()


class Edge(nn.Module):
    """A hop's first or last layer: takes what is given in place of what comes, and keeps what it leaves."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.attention_type = layer, getattr(layer, "attention_type", None)
        self.given: torch.Tensor | None = None
        self.left: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        output = self.layer(hidden if self.given is None else self.given, *args, **kwargs)
        self.left = output[0] if isinstance(output, tuple) else output
        return output


@dataclass(frozen=True, slots=True)
class _Hop:
    layers: nn.ModuleList
    first: Edge
    last: Edge


class ModuleShard(Shard):
    """Layers [start_layer, end_layer) as transformers' own modules."""

    executor = "transformers"

    def __init__(self, model: Any, start_layer: int, end_layer: int, dtype: str, weights: str = "dense") -> None:
        super().__init__(model.config, start_layer, end_layer, dtype, weights)
        self._model, self._base = model, model.base_model
        self._layers_name, layers = layers_of(self._base, self.num_layers)
        self._layers, self._hops = list(layers), dict[tuple[int, int], _Hop]()
        self._is_latent = getattr(model.config, "kv_lora_rank", None) is not None

    def new_cache(self, start_layer: int, end_layer: int, room_tokens: int = 0) -> HopCache:
        return HopCache(start_layer, end_layer, room_tokens)

    def forward(self, rows: Sequence[Row], start_layer: int, end_layer: int) -> list[torch.Tensor]:
        self.check_rows(rows, start_layer, end_layer)
        hop_layers = self._hop(start_layer, end_layer)
        output = self._forward(rows, hop_layers, end_layer == self.num_layers)
        counts = [row.num_logits if end_layer == self.num_layers else row.num_tokens for row in rows]
        return list(torch.split(output, counts))

    def _forward(self, rows: Sequence[Row], hop: _Hop, is_last: bool) -> torch.Tensor:
        """hidden: [tokens of all rows, width], or after the last layer logits: [logits of all rows, vocab_size]"""
        positions = [torch.arange(row.position, row.position + row.num_tokens) for row in rows]
        arguments = {"position_ids": torch.cat(positions).unsqueeze(0), "use_cache": True}
        kept = _kept(rows) if is_last else None
        setattr(self._base, self._layers_name, hop.layers)
        try:
            arguments |= self._inputs(rows, hop)
            if kept is not None and len(kept):
                logits: torch.Tensor = self._call(self._model, rows, **arguments, logits_to_keep=kept).logits[0]
                return logits.to(torch.float32)
            self._call(self._base, rows, **arguments)
            assert hop.last.left is not None
            hidden: torch.Tensor = hop.last.left[0]
            return hidden if kept is None else torch.empty(0, self.vocab_size)
        finally:
            hop.first.given = hop.first.left = hop.last.left = None

    def _call(self, model: Any, rows: Sequence[Row], **arguments: Any) -> Any:
        if len(rows) == 1:
            return model(cache=rows[0].cache, **arguments)
        caches = row_caches.RowCaches([row.cache for row in rows], [row.num_tokens for row in rows], self._is_latent)
        return row_caches.forward(model, caches, **arguments)

    def _inputs(self, rows: Sequence[Row], hop: _Hop) -> dict[str, torch.Tensor]:
        """What the model is called with; hidden states that came in wait at the hop's first layer."""
        hidden = [row.inputs for row in rows if isinstance(row.inputs, torch.Tensor)]
        if len(hidden) == len(rows):
            hop.first.given = torch.cat(hidden).unsqueeze(0).to(DTYPES[self.dtype])
            return {"inputs_embeds": hop.first.given}
        if hidden or not self.is_head or hop.first.layer is not self._layers[0]:
            raise ValueError(f"layers {self.start_layer}–{self.end_layer - 1} were given ids without an embedding")
        return {"input_ids": torch.tensor([[token_id for row in rows for token_id in row.inputs]])}

    def _hop(self, start_layer: int, end_layer: int) -> _Hop:
        """The model's list of layers with those outside the hop passing through; made once per hop."""
        key = (start_layer, end_layer)
        if key not in self._hops:
            first = Edge(self._layers[start_layer])
            last = first if end_layer == start_layer + 1 else Edge(self._layers[end_layer - 1])
            inside: dict[int, nn.Module] = {number: self._layers[number] for number in range(*key)}
            inside |= {start_layer: first, end_layer - 1: last}
            layers = [inside.get(number) or PassThrough(layer) for number, layer in enumerate(self._layers)]
            self._hops[key] = _Hop(nn.ModuleList(layers), first, last)
        return self._hops[key]


def _kept(rows: Sequence[Row]) -> torch.Tensor:
    """Where, among all rows' tokens, logits are wanted."""
    kept, end = [], 0
    for row in rows:
        end += row.num_tokens
        kept.append(torch.arange(end - row.num_logits, end))
    return torch.cat(kept)


def load(
    folder: ModelFolder, start_layer: int, end_layer: int, dtype: str, weights: str, progress: bool
) -> ModuleShard:
    """See executors.load_shard, which has checked the arguments."""
    config = copy.deepcopy(folder.config)
    if end_layer < folder.num_layers:
        config.tie_word_embeddings = False  # there is no head to tie
    tensors = folder.tensors_of(start_layer, end_layer)
    shard_class = cut_class(AutoModelForCausalLM._model_mapping[type(config)], start_layer, end_layer)
    if weights != "dense":
        packed_modules.quantize_instances(shard_class, weights, DTYPES[dtype])
    try:
        experts.check(tensors, [*folder.tensors, *folder.absent])
        with _LOADING, _progress_bars(progress), _reading(weights), Checkpoint(folder.path, tensors) as checkpoint:
            model, loaded = _read(shard_class, checkpoint, config, dtype)
        if weights != "dense":
            packed_modules.finish(model)
        _refuse_unless_complete(model, loaded)
    except (OSError, ValueError, RuntimeError, ModelError) as error:
        raise ModelError(f"{folder.path} can't be loaded: {error}") from error
    return ModuleShard(model, start_layer, end_layer, dtype, weights)


def _read(shard_class: Any, checkpoint: Checkpoint, config: Any, dtype: str) -> tuple[Any, dict[str, Any]]:
    attention = row_caches.SDPA if shard_class._supports_sdpa else row_caches.EAGER
    model, loaded = shard_class.from_pretrained(
        None,
        config=config,
        state_dict=checkpoint.state_dict(),
        dtype=DTYPES[dtype],
        attn_implementation=attention,
        ignore_mismatched_sizes=True,  # they are reported, and refused below by name
        output_loading_info=True,
    )
    return model.eval().requires_grad_(False), loaded


def _refuse_unless_complete(model: Any, loaded: dict[str, Any]) -> None:
    """transformers fills what it doesn't find with random numbers; a node must not serve those."""
    missing = sorted(loaded.get("missing_keys", ()))
    mismatched = [_shapes(*key) for key in sorted(loaded.get("mismatched_keys", ()))]
    named = [*model.named_parameters(), *model.named_buffers()]
    on_meta = sorted(name for name, tensor in named if tensor.device.type == "meta")
    for names, fault in ((missing, "missing"), (mismatched, "of another shape"), (on_meta, "not loaded")):
        if names:
            raise ModelError(f"tensor {', '.join(names[:3])} {fault} ({len(names)} in all)")
    if errors := loaded.get("error_msgs"):
        raise ModelError(str(errors[0]))


def _shapes(name: str, found: Sequence[int], wanted: Sequence[int]) -> str:
    return f"{name} {list(found)} instead of {list(wanted)}"


def _reading(weights: str) -> AbstractContextManager[None]:
    return nullcontext() if weights == "dense" else packed_modules.one_by_one()


@contextmanager
def _progress_bars(shown: bool) -> Iterator[None]:
    """transformers' bars, shown or not for the time of a load; its switch is for the whole process."""
    before = transformers_logging.is_progress_bar_enabled()
    _switch_progress_bars(shown)
    try:
        yield
    finally:
        _switch_progress_bars(before)


def _switch_progress_bars(shown: bool) -> None:
    if shown:
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    else:
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
