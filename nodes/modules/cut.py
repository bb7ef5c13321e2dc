"""A model's class of transformers, cut to a shard: what lies outside passes through, before any weight is read.

Nothing here knows a family by name. A base model is some modules, the list of its layers, and some modules more: those
before the list belong to the head, those after it, and what stands after the base model, to the tail. Config and layer
numbers stay whole, because families index rotary embeddings, windows and experts by the absolute number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


class PassThrough(nn.Module):
    """Stands where a layer, a norm or a head is another node's."""

    def __init__(self, replaced: nn.Module | None = None) -> None:
        super().__init__()
        self.attention_type = getattr(replaced, "attention_type", None)  # some models ask each layer for its mask

    def forward(self, hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden


def layers_of(base: nn.Module, num_layers: int) -> tuple[str, nn.ModuleList]:
    """The name and the list of a base model's layers."""
    for name, module in base.named_children():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return name, module
    raise TypeError(f"{type(base).__name__} has no list of {num_layers} layers")


def cut_class(model_class: Any, start_layer: int, end_layer: int) -> Any:
    """The model's class, whose instances have pass-throughs for all that is outside [start_layer, end_layer)."""

    class Cut(model_class):
        # The other layers' tensors are in the same files, and are no news.
        _keys_to_ignore_on_load_unexpected = [r".*"]

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            _cut(self, start_layer, end_layer)

    # transformers finds how to rename and fuse a checkpoint's tensors by these, and does it for its own classes only.
    Cut.__name__, Cut.__qualname__, Cut.__module__ = (
        model_class.__name__,
        model_class.__qualname__,
        model_class.__module__,
    )
    return Cut


def _cut(model: Any, start_layer: int, end_layer: int) -> None:
    base, num_layers = model.base_model, model.config.num_hidden_layers
    _, layers = layers_of(base, num_layers)
    for number in range(num_layers):
        if not start_layer <= number < end_layer:
            layers[number] = PassThrough(layers[number])
    before, after = _around(base, layers)
    is_tail = end_layer == num_layers
    if start_layer > 0 and not (is_tail and model.config.tie_word_embeddings):
        _replace(base, before)
    if not is_tail:
        _replace(base, after)
        _replace(model, _around(model, base)[1])


def _around(parent: nn.Module, child: nn.Module) -> tuple[list[str], list[str]]:
    """Names of the parent's children with weights, before the child and after it."""
    children = list(parent.named_children())
    at = next(number for number, (_, module) in enumerate(children) if module is child)
    return list(_with_weights(children[:at])), list(_with_weights(children[at + 1 :]))


def _with_weights(children: list[tuple[str, nn.Module]]) -> Iterator[str]:
    return (name for name, module in children if next(module.parameters(), None) is not None)


def _replace(parent: nn.Module, names: list[str]) -> None:
    for name in names:
        setattr(parent, name, PassThrough())
