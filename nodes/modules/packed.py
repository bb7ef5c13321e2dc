"""transformers' modules with quantized weights: each matrix is quantized as it is read, so that none waits dense.

Before the weights are read, every plain linear layer and embedding gives way to a module that looks the same to
transformers' loading, but keeps what it is given in fewer bits. What a family computes by classes of its own (experts,
routers, scaled embeddings) stays dense.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from nodes.linear import TABLES, Linear, make_linear
from nodes.quantize import can_be_quantized

# A router's small errors send tokens to other experts; some are multiplied by hand, too.
_ROUTERS = {"gate", "router"}

logger = logging.getLogger(__name__)


class PackedModule(nn.Module):
    """Takes a dense `weight` and keeps its product. The parameter of that name stays on meta: it has only a shape."""

    product: Linear | None

    def __init__(self, replaced: nn.Linear | nn.Embedding, weights: str) -> None:
        super().__init__()
        self.weights, self.product = weights, None
        self.weight = nn.Parameter(replaced.weight.to("meta"), requires_grad=False)
        self.bias = getattr(replaced, "bias", None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and isinstance(value, torch.Tensor) and value.device.type != "meta":
            # Tied, the same one comes again.
            if self.product is None:
                self.product = make_linear(value.detach(), None, self.weights)
        else:
            super().__setattr__(name, value)


class PackedLinearModule(PackedModule):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., in_features]"""
        assert self.product is not None
        output = self.product(x.flatten(0, -2)).view(*x.shape[:-1], -1)
        return output if self.bias is None else output + self.bias


class PackedEmbeddingModule(PackedModule):
    def __init__(self, replaced: nn.Embedding, weights: str, dtype: torch.dtype) -> None:
        super().__init__(replaced, weights)
        self.dtype = dtype

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        assert self.product is not None
        return self.product.rows(numbers.flatten()).to(self.dtype).view(*numbers.shape, -1)


def quantize_instances(cut_class: Any, weights: str, dtype: torch.dtype) -> None:
    """Instances of the class, which is of one load, will quantize what they are given.

    Not a subclass of it: transformers looks up how to rename a family's tensors by the class's own parent.
    """
    cut = cut_class.__init__

    def cut_and_replace(self: Any, config: Any) -> None:
        cut(self, config)
        _replace(self, weights, dtype)

    cut_class.__init__ = cut_and_replace


def _replace(model: Any, weights: str, dtype: torch.dtype) -> None:
    head = model.get_output_embeddings()
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            if _ROUTERS.intersection((*path.split("."), name)):
                continue
            if type(child) is nn.Linear and can_be_quantized(child.weight):
                kind = TABLES[weights] if child is head else weights
                setattr(parent, name, PackedLinearModule(child, kind))
            elif type(child) is nn.Embedding and can_be_quantized(child.weight):
                setattr(parent, name, PackedEmbeddingModule(child, TABLES[weights], dtype))


def finish(model: Any) -> None:
    """Once all is read: a tied head takes the embedding's product, and nothing is left that has only a shape."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if isinstance(head, PackedModule) and isinstance(embedding, PackedModule) and head.product is None:
        head.product = embedding.product
    for module in model.modules():
        if isinstance(module, PackedModule) and module.product is not None:
            del module.weight
    dense = {name: parameter.nbytes for name, parameter in model.named_parameters() if parameter.dim() > 1}
    if dense:
        logger.info("%d MB stay dense: %s", sum(dense.values()) // 10**6, ", ".join(_kinds(dense)))


def _kinds(names: Iterable[str]) -> list[str]:
    """The parameters' names, each once whatever layer they are of."""
    return sorted({re.sub(r"\.\d+", "", name).removeprefix("model.") for name in names})


@contextmanager
def one_by_one() -> Iterator[None]:
    """transformers' threads otherwise read ahead of what is being quantized, in the end the whole shard."""
    before = os.environ.get("HF_DEACTIVATE_ASYNC_LOAD")
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_DEACTIVATE_ASYNC_LOAD"]
        else:
            os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = before
