"""The tensors of a Llama-shaped model on disk: names, shapes, and which of them make one product in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodes.lean.config import LeanConfig

EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
ATTENTION_NORM, MLP_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"
QUERY_NORM, KEY_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"

Shape = tuple[int, ...]
Parts = tuple[tuple[str, int], ...]  # (name within the layer, rows)


@dataclass(frozen=True, slots=True)
class Product:
    """Projections of one input, a product in memory: their rows one below the other."""

    parts: Parts
    in_features: int
    has_bias: bool

    @property
    def out_features(self) -> int:
        return sum(rows for _, rows in self.parts)

    @property
    def num_elements(self) -> int:
        return self.out_features * self.in_features

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        for name, rows in self.parts:
            yield f"{name}.weight", (rows, self.in_features)
            if self.has_bias:
                yield f"{name}.bias", (rows,)


@dataclass(frozen=True, slots=True)
class Layout:
    """The products of a layer."""

    qkv: Product
    output: Product
    gate_up: Product
    down: Product

    @property
    def products(self) -> tuple[Product, ...]:
        return self.qkv, self.output, self.gate_up, self.down


def prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def layout_of(config: LeanConfig) -> Layout:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    width, inner = config.width, config.intermediate
    qkv: Parts = (("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys))
    gate_up: Parts = (("mlp.gate_proj", inner), ("mlp.up_proj", inner))
    if config.is_fused_on_disk:
        qkv, gate_up = (("self_attn.qkv_proj", queries + 2 * keys),), (("mlp.gate_up_proj", 2 * inner),)
    return Layout(
        qkv=Product(qkv, width, config.has_qkv_bias),
        output=Product((("self_attn.o_proj", width),), queries, config.has_output_bias),
        gate_up=Product(gate_up, width, config.has_mlp_bias),
        down=Product((("mlp.down_proj", width),), inner, config.has_mlp_bias),
    )


def shapes(config: LeanConfig, start_layer: int, end_layer: int) -> dict[str, Shape]:
    """Every tensor that a shard of layers [start_layer, end_layer) reads."""
    is_tail, vocabulary = end_layer == len(config.windows), (config.vocab_size, config.width)
    found: dict[str, Shape] = {}
    if start_layer == 0 or (is_tail and config.is_tied):
        found[EMBEDDING] = vocabulary
    for layer in range(start_layer, end_layer):
        found |= {prefix(layer) + name: shape for name, shape in _layer_shapes(config)}
    if is_tail:
        found[NORM] = (config.width,)
        if not config.is_tied:
            found[HEAD] = vocabulary
    return found


def _layer_shapes(config: LeanConfig) -> Iterator[tuple[str, Shape]]:
    layout = layout_of(config)
    yield ATTENTION_NORM, (config.width,)
    for product in layout.products:
        yield from product.shapes()
    yield MLP_NORM, (config.width,)
    if config.has_qk_norm:
        yield QUERY_NORM, (config.head_dim,)
        yield KEY_NORM, (config.head_dim,)
