"""A shard as transformers' own modules: every family that is served, and what the lean executor is measured by.

The shard is the model's own class of transformers. Its subclass replaces every layer outside the shard by a
pass-through before the weights are read, so that from_pretrained reads only what is left. Config and layer numbers
stay whole, because families index rotary embeddings, windows and experts by the absolute number.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from nodes.activations import DTYPES
from nodes.cache import HopCache
from nodes.shard import Row, Shard
from nodes.weights import ModelError, ModelFolder

# transformers switches tying off for the whole process while it loads; two loads at once leave it off for ever.
_LOADING = threading.Lock()


class PassThrough(nn.Module):
    """Stands where a layer, a norm or a head is another node's."""

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden


class ModuleShard(Shard):
    """Layers [start_layer, end_layer) as transformers' own modules."""

    executor = "transformers"

    def __init__(self, model: Any, start_layer: int, end_layer: int, dtype: str, weights: str = "dense") -> None:
        super().__init__(model.config, start_layer, end_layer, dtype, weights)
        self._model, self._base = model, model.base_model
        self._layers, self._norm, self._pass = list(self._base.layers), self._base.norm, PassThrough()
        self._hops: dict[tuple[int, int], nn.ModuleList] = {(start_layer, end_layer): self._base.layers}

    def new_cache(self, start_layer: int, end_layer: int, room_tokens: int = 0) -> HopCache:
        return HopCache(start_layer, end_layer, room_tokens)

    def forward(self, rows: Sequence[Row], start_layer: int, end_layer: int) -> list[torch.Tensor]:
        self.check_hop(start_layer, end_layer)
        return [self._forward(row, start_layer, end_layer) for row in rows]

    def _forward(self, row: Row, start_layer: int, end_layer: int) -> torch.Tensor:
        cache = row.cache
        if (cache.start_layer, cache.end_layer) != (start_layer, end_layer) or cache.num_tokens != row.position:
            raise ValueError("the cache is of other layers, or doesn't end where the step starts")
        # hidden: [1, tokens, width]
        hidden = self._embed(row.inputs).unsqueeze(0).to(DTYPES[self.dtype])
        self._base.layers = self._modules_of(start_layer, end_layer)
        self._base.norm = self._norm if end_layer == self.num_layers else self._pass
        positions = torch.arange(row.position, row.position + row.num_tokens).unsqueeze(0)
        output = self._base(inputs_embeds=hidden, position_ids=positions, cache=cache, use_cache=True)
        result: torch.Tensor = output.last_hidden_state[0]
        return self._logits(result[len(result) - row.num_logits :]) if end_layer == self.num_layers else result

    def _embed(self, inputs: torch.Tensor | Sequence[int]) -> torch.Tensor:
        """hidden: [tokens, width]"""
        if isinstance(inputs, torch.Tensor):
            return inputs
        if not self.is_head:
            raise ValueError(f"layers {self.start_layer}–{self.end_layer - 1} have no embedding")
        hidden: torch.Tensor = self._base.embed_tokens(torch.tensor([list(inputs)]))[0]
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 logits [tokens, vocab_size] of hidden [tokens, width]."""
        logits: torch.Tensor = self._model.lm_head(hidden)
        return logits.to(torch.float32)

    def _modules_of(self, start_layer: int, end_layer: int) -> nn.ModuleList:
        """The model's list of layers with those outside the hop passing through; made once per hop."""
        key = (start_layer, end_layer)
        if key not in self._hops:
            inside = range(start_layer, end_layer)
            layers = (layer if number in inside else self._pass for number, layer in enumerate(self._layers))
            self._hops[key] = nn.ModuleList(layers)
        return self._hops[key]


def load(
    folder: ModelFolder, start_layer: int, end_layer: int, dtype: str, weights: str, progress: bool
) -> ModuleShard:
    """See shard.load_shard, which has checked the arguments."""
    config = copy.deepcopy(folder.config)
    if end_layer < folder.num_layers:
        config.tie_word_embeddings = False  # there is no head to tie
    shard_class = _cut_class(AutoModelForCausalLM._model_mapping[type(config)], start_layer, end_layer)
    with _LOADING, _progress_bars(progress):
        model, loaded = _read(shard_class, folder, config, dtype)
    _refuse_unless_complete(folder, model, loaded)
    return ModuleShard(model, start_layer, end_layer, dtype, weights)


def _cut_class(model_class: Any, start_layer: int, end_layer: int) -> Any:
    """The model's class, whose instances have pass-throughs for all that is outside the shard."""

    class Cut(model_class):
        # The other layers' tensors are in the same files, and are no news.
        _keys_to_ignore_on_load_unexpected = [r".*"]

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            base, is_tail = self.base_model, end_layer == config.num_hidden_layers
            for number in range(config.num_hidden_layers):
                if not start_layer <= number < end_layer:
                    base.layers[number] = PassThrough()
            if start_layer > 0 and not (is_tail and config.tie_word_embeddings):
                base.embed_tokens = PassThrough()
            if not is_tail:
                base.norm, self.lm_head = PassThrough(), PassThrough()

    Cut.__name__ = Cut.__qualname__ = model_class.__name__
    return Cut


def _read(shard_class: Any, folder: ModelFolder, config: Any, dtype: str) -> tuple[Any, dict[str, Any]]:
    try:
        model, loaded = shard_class.from_pretrained(
            folder.path,
            config=config,
            dtype=DTYPES[dtype],
            attn_implementation="sdpa",  # transformers' default; named so that every node computes the same
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are reported, and refused below by name
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{folder.path} can't be loaded: {error}") from error
    return model.eval().requires_grad_(False), loaded


def _refuse_unless_complete(folder: ModelFolder, model: Any, loaded: dict[str, Any]) -> None:
    """transformers fills what it doesn't find with random numbers; a node must not serve those."""
    missing = sorted(loaded.get("missing_keys", ()))
    mismatched = sorted(str(key) for key in loaded.get("mismatched_keys", ()))
    named = [*model.named_parameters(), *model.named_buffers()]
    on_meta = sorted(name for name, tensor in named if tensor.device.type == "meta")
    for names, fault in ((missing, "missing"), (mismatched, "of another shape"), (on_meta, "not loaded")):
        if names:
            raise ModelError(f"{folder.path}: tensor {', '.join(names[:3])} {fault} ({len(names)} in all)")
    if errors := loaded.get("error_msgs"):
        raise ModelError(f"{folder.path} can't be loaded: {errors[0]}")


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
