"""Whether a shard and its caches fit into this machine's memory. Linux: what /proc and the control group say."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.headers import DTYPE_BYTES

CACHE_SHARE = 0.5  # of what is left beside the weights; the rest is for activations and other programs
DENSE_SHARE = 0.2  # of what is free, at most, for dense weights beside those in int4
MAX_CACHED_TOKENS = 1_000_000
PLANNED_TOKENS = (
    4096  # of all chats together: the room for caches with which layers are reckoned before they are chosen
)
LEAST_CACHED_TOKENS = 256
INT8_BYTES, INT4_BYTES = 1.01, 0.625  # a number of a quantized matrix, with its part of what its row or group shares
WORKING_BYTES = 200_000_000  # Python, torch, tokenizer


class DoesNotFit(Exception):
    """The layers need more memory than there is."""


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may still take; 0 where that can't be known."""
    found = [size for size in (_available(root / "proc/meminfo"), _group_room(root / "sys/fs/cgroup")) if size]
    return min(found, default=0)


def give_back() -> None:
    """Returns to the system what was allocated here and isn't used any more: holes between what stays add up."""
    with suppress(OSError, AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def cache_bytes_per_token(config: Any, num_layers: int, dtype: str) -> int:
    return num_layers * _cached_numbers(config) * DTYPE_BYTES[dtype]


def _cached_numbers(config: Any) -> int:
    """What one layer keeps of one token: keys and values, or the latent that both are made from."""
    if latent := getattr(config, "kv_lora_rank", None):
        return int(latent + config.qk_rope_head_dim)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * heads * head_width)


def weight_bytes(elements: Mapping[str, int], dtype: str, weights: str) -> int:
    """Of a shard whose tensors, by name, have so many numbers. Embedding and head never have fewer than eight bits."""
    return sum(math.ceil(count * _bytes_each(name, dtype, weights)) for name, count in elements.items())


def _bytes_each(name: str, dtype: str, weights: str) -> float:
    if weights == "dense" or ".experts." in name:  # which stay dense
        return DTYPE_BYTES[dtype]
    return INT4_BYTES if weights == "int4" and ".layers." in name else INT8_BYTES


def room_for_tokens(
    weight_bytes: int,
    dtype: str,
    bytes_per_token: int,
    available: int,
    weights: str = "dense",
    asked: int | None = None,
    limit: str = "are free",
) -> int:
    """Tokens that caches may hold beside the weights: a share of what is left, or as many as were asked for. `limit`:
    what `available` is, in words. Raises DoesNotFit."""
    if not available:
        return asked or MAX_CACHED_TOKENS
    needed = weight_bytes + WORKING_BYTES
    if asked:
        return _asked_tokens(asked, int(max(0, available - needed) / bytes_per_token))
    tokens = int(max(0, available - needed) * CACHE_SHARE / bytes_per_token)
    if tokens < LEAST_CACHED_TOKENS:
        least = needed + LEAST_CACHED_TOKENS * bytes_per_token / CACHE_SHARE
        raise DoesNotFit(
            f"need {in_gib(least)} of memory in {dtype}, and {in_gib(available)} {limit}; {_advice(weights)}"
        )
    return min(tokens, MAX_CACHED_TOKENS)


def planned_cache_bytes(config: Any, dtype: str, asked: int | None = None) -> int:
    """Of the memory beside the weights, what a layer is to leave: so much that room_for_tokens finds room for
    PLANNED_TOKENS, or for as many as are asked for."""
    per_token = cache_bytes_per_token(config, 1, dtype)
    if asked:
        return asked * per_token
    tokens = max(LEAST_CACHED_TOKENS, min(PLANNED_TOKENS, int(config.max_position_embeddings)))
    return math.ceil(tokens * per_token / CACHE_SHARE)


def _advice(weights: str) -> str:
    return "take fewer layers" if weights == "int4" else "take fewer layers, or --weights int4"


def _asked_tokens(asked: int, most: int) -> int:
    """Whoever names a number may take all that the weights leave."""
    if asked > most:
        raise DoesNotFit(f"leave room for {most} tokens in caches; --max-kv-tokens {asked} is more: lower it")
    return asked


def _available(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def _group_room(folder: Path) -> int:
    """Of a control group with a limit, version 2."""
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(1, int(limit) - int(used))
    except (OSError, ValueError):  # none, or "max"
        return 0


def in_gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
