"""Whether a layer has all its experts: transformers stacks those it finds into one tensor and names none it lacks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from nodes.layout import ModelError, Tensor

_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(.+)")


def check(tensors: Mapping[str, Tensor], known: Iterable[str]) -> None:
    """`tensors`: a shard's. `known`: names of the model's, which tell how many experts a layer has and of what.

    Raises ModelError naming a tensor that is missing or larger or smaller than its like.
    """
    parts = [found.groups() for name in known if (found := _EXPERT.fullmatch(name))]
    numbers, kinds = {number for _, number, _ in parts}, {kind for _, _, kind in parts}
    for layer, present in _by_layer(tensors).items():
        wanted = (f"{layer}{number}.{kind}" for number in sorted(numbers, key=int) for kind in sorted(kinds))
        if lost := [name for name in wanted if name not in present]:
            raise ModelError(f"tensor {lost[0]} missing ({len(lost)} in all)")
        for name in _unlike(present):
            raise ModelError(f"tensor {name} of another shape than that of the layer's other experts")


def _by_layer(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, int]]:
    """The sizes of the experts' tensors, by what their names begin with."""
    layers: dict[str, dict[str, int]] = defaultdict(dict)
    for name, tensor in tensors.items():
        if found := _EXPERT.fullmatch(name):
            layers[found[1]][name] = tensor.num_elements
    return layers


def _unlike(sizes: Mapping[str, int]) -> Iterator[str]:
    kinds: dict[str, Counter[int]] = defaultdict(Counter)
    for name, size in sizes.items():
        kinds[_kind(name)][size] += 1
    return (name for name, size in sizes.items() if size != kinds[_kind(name)].most_common(1)[0][0])


def _kind(name: str) -> str:
    found = _EXPERT.fullmatch(name)
    assert found
    return found[3]
