from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from nodes import memory
from nodes.memory import DoesNotFit

GIB = 2**30


def test_caches_get_a_share_of_what_the_weights_leave() -> None:
    weights = 1_000_000_000
    tokens = memory.room_for_tokens(weights, "bfloat16", 10_000, available=4 * GIB)

    left = 4 * GIB - weights - memory.WORKING_BYTES
    assert tokens == int(left * memory.CACHE_SHARE / 10_000)


def test_weights_take_as_many_bytes_as_they_are_kept_in() -> None:
    elements = {"model.embed_tokens.weight": 1000, "model.layers.0.mlp.up_proj.weight": 1000}

    def bytes_of(dtype: str, weights: str) -> int:
        return memory.weight_bytes(elements, dtype, weights)

    assert (bytes_of("float32", "dense"), bytes_of("bfloat16", "dense")) == (8000, 4000)
    assert (bytes_of("float32", "int8"), bytes_of("bfloat16", "int8")) == (2020, 2020)
    assert bytes_of("bfloat16", "int4") == 1010 + 625  # the embedding has eight bits


def test_experts_are_counted_dense_as_they_stay() -> None:
    elements = {"model.layers.0.mlp.experts.3.up_proj.weight": 1000}

    assert memory.weight_bytes(elements, "bfloat16", "int4") == 2000


def test_what_doesnt_fit_says_what_is_needed_and_what_there_is() -> None:
    with pytest.raises(
        DoesNotFit, match=r"need \d+\.\d GiB of memory in bfloat16, and 1\.0 GiB are free; .*--weights int4"
    ):
        memory.room_for_tokens(2 * 10**9, "bfloat16", 10_000, GIB)


def test_whoever_names_a_number_of_tokens_gets_it_where_memory_has_room() -> None:
    def room(asked: int | None = None, available: int = 4 * GIB) -> int:
        return memory.room_for_tokens(10**9, "bfloat16", 10_000, available, asked=asked)

    usual = room()
    assert room(100) == 100
    assert room(usual + 1000) == usual + 1000
    with pytest.raises(DoesNotFit, match="leave room for 309496 tokens in caches; --max-kv-tokens 400000 is more"):
        room(400_000)
    assert room(400_000, available=0) == 400_000


def test_where_attention_is_latent_the_latent_is_what_a_token_weighs() -> None:
    config = SimpleNamespace(num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=512, qk_rope_head_dim=64)

    assert memory.cache_bytes_per_token(config, 2, "bfloat16") == 2 * (512 + 64) * 2


def test_where_memory_cant_be_known_it_is_tried() -> None:
    assert memory.room_for_tokens(10**12, "bfloat16", 10_000, available=0) == memory.MAX_CACHED_TOKENS


def test_a_token_weighs_keys_and_values_of_every_layer() -> None:
    config = SimpleNamespace(num_key_value_heads=3, num_attention_heads=9, hidden_size=576, head_dim=64)

    assert memory.cache_bytes_per_token(config, 30, "bfloat16") == 2 * 30 * 3 * 64 * 2
    bare = SimpleNamespace(num_attention_heads=9, hidden_size=576)
    assert memory.cache_bytes_per_token(bare, 1, "float32") == 2 * 9 * 64 * 4


def test_it_reads_what_linux_says(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:      50 kB\n")
    assert memory.available_bytes(tmp_path) == 50 * 1024

    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert memory.available_bytes(tmp_path) == 50 * 1024
    (group / "memory.max").write_text("3000\n")
    assert memory.available_bytes(tmp_path) == 2000


def test_elsewhere_it_doesnt_know(tmp_path: Path) -> None:
    assert memory.available_bytes(tmp_path) == 0
