"""What a model's layers take, by the headers of its files: as they are there, and as this node will hold them.

The site chooses layers by these figures before a byte of the weights is fetched. All layers are taken for as large as
the largest, so that whatever is chosen fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodes import memory
from nodes.layout import Tensor
from nodes.options import NodeOptions
from nodes.weights import ModelFolder, layer_of

Weigh = Callable[[Mapping[str, Tensor]], int]


@dataclass(frozen=True)
class Sizes:
    """Bytes of a layer, of what comes before the layers and of what comes after them; None: its files aren't here."""

    layer_bytes: int | None
    head_bytes: int | None
    tail_bytes: int | None


def in_files(folder: ModelFolder) -> Sizes:
    return _sizes(folder, lambda tensors: sum(tensor.num_bytes for tensor in tensors.values()))


def on_node(options: NodeOptions, folder: ModelFolder) -> Sizes:
    """In the node's dtype and weights; a layer with its part of the room for caches."""

    def weigh(tensors: Mapping[str, Tensor]) -> int:
        elements = {name: tensor.num_elements for name, tensor in tensors.items()}
        return memory.weight_bytes(elements, options.dtype, options.weights)

    sizes = _sizes(folder, weigh)
    if sizes.layer_bytes is None:
        return sizes
    caches = memory.planned_cache_bytes(folder.config, options.dtype, options.max_kv_tokens)
    return Sizes(sizes.layer_bytes + caches, sizes.head_bytes, sizes.tail_bytes)


def budget_bytes(options: NodeOptions) -> int | None:
    """What this node gives to weights and caches together; None where that can't be known."""
    free = memory_limit(options)
    return max(0, free - memory.WORKING_BYTES) if free else None


def memory_limit(options: NodeOptions) -> int:
    """Memory that this node may still take: what is free, or less where its owner says so; 0 where nobody knows."""
    free, most = memory.available_bytes(), options.max_memory_bytes
    return min(free or most, most) if most else free


def read_elements(folder: ModelFolder) -> int:
    """Numbers of a layer that are read for one token: of a mixture of experts those of the experts that are asked."""
    share = _share_of_experts(folder.config)
    layers: dict[int, float] = {}
    for name, tensor in folder.tensors.items():
        if (layer := layer_of(name)) is not None:
            read = tensor.num_elements * (share if ".experts." in name else 1)
            layers[layer] = layers.get(layer, 0) + read
    return int(max(layers.values(), default=0))


def _share_of_experts(config: object) -> float:
    asked = getattr(config, "num_experts_per_tok", None)
    names = "num_experts", "num_local_experts", "n_routed_experts"
    held = next((number for name in names if (number := getattr(config, name, None))), None)
    return min(1.0, asked / held) if asked and held else 1.0


def _sizes(folder: ModelFolder, weigh: Weigh) -> Sizes:
    last = folder.num_layers
    layers: dict[int, dict[str, Tensor]] = {}
    for name, tensor in folder.tensors.items():
        if (layer := layer_of(name)) is not None:
            layers.setdefault(layer, {})[name] = tensor
    largest = max((weigh(tensors) for tensors in layers.values()), default=None)
    return Sizes(largest, _edge(folder, weigh, 0, min(1, last)), _edge(folder, weigh, last - 1, last))


def _edge(folder: ModelFolder, weigh: Weigh, start_layer: int, end_layer: int) -> int | None:
    """Of what a shard at this end of the model holds beside its layers."""

    def is_there(name: str) -> bool:
        return layer_of(name) is None and folder.holds(name, start_layer, end_layer)

    if any(map(is_there, folder.absent)):
        return None
    return weigh({name: tensor for name, tensor in folder.tensors.items() if is_there(name)})
