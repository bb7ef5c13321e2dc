"""Cutting a model changes nothing: hidden states, logits and ids are those of the whole, bit for bit."""

from __future__ import annotations

import concurrent.futures
import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nodes.executors import load_shard as load_any
from nodes.modules.cache import HopCache
from nodes.modules.shard import ModuleShard
from nodes.shard import Row
from nodes.sources import open_model
from nodes.weights import ModelError, ModelFolder
from tests.nodes.greedy import chunks_of, generated, greedy_ids, load_hops, logits_of_steps
from tests.nodes.models import make_tiny_llama

DTYPES = ("float32", "bfloat16")
# Of six layers, at odd ones; in the last two a hop starts inside its shard.
CUTS = [[(0, 1), (1, 6)], [(0, 5), (5, 6)], [(0, 1), (1, 3), (3, 6)]]


def folder_of(name: str, request: pytest.FixtureRequest) -> ModelFolder:
    folder: ModelFolder = request.getfixturevalue(name)
    return folder


def load_shard(folder: ModelFolder, start_layer: int, end_layer: int, dtype: str = "bfloat16") -> ModuleShard:
    shard = load_any(folder, start_layer, end_layer, dtype, executor="transformers")
    assert isinstance(shard, ModuleShard)
    return shard


def some_ids(num_tokens: int, vocab_size: int = 290, seed: int = 7) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, vocab_size, (num_tokens,), generator=generator).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["tiny", "tiny_tied"])
@pytest.mark.parametrize("cut", CUTS)
def test_split_equals_whole(name: str, cut: list[tuple[int, int]], dtype: str, request: pytest.FixtureRequest) -> None:
    folder = folder_of(name, request)
    steps = [*chunks_of(some_ids(37), 16), *((number,) for number in some_ids(8, seed=8))]
    whole = logits_of_steps(load_hops(folder, [(0, 6)], dtype), steps)
    parts = logits_of_steps(load_hops(folder, cut, dtype), steps)
    assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["tiny", "tiny_tied"])
def test_a_hop_may_start_and_end_inside_its_shard(name: str, dtype: str, request: pytest.FixtureRequest) -> None:
    folder = folder_of(name, request)
    steps = [*chunks_of(some_ids(20), 16), *((number,) for number in some_ids(5, seed=8))]
    shards = [load_shard(folder, *layers, dtype) for layers in ((0, 4), (1, 5), (2, 6))]
    hops = [(shards[0], 0, 3), (shards[1], 3, 4), (shards[2], 4, 6)]
    whole = logits_of_steps(load_hops(folder, [(0, 6)], dtype), steps)
    assert all(torch.equal(one, other) for one, other in zip(whole, logits_of_steps(hops, steps), strict=True))


def test_one_shard_serves_hops_of_different_layers_in_turn(tiny: ModelFolder) -> None:
    shard, steps = load_shard(tiny, 0, 6), [some_ids(9), (5,), (6,)]
    first = list(logits_of_steps([(shard, 0, 6)], steps))
    cut = list(logits_of_steps([(shard, 0, 1), (shard, 1, 3), (shard, 3, 6)], steps))
    again = list(logits_of_steps([(shard, 0, 6)], steps))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, cut, again, strict=True))


@torch.inference_mode()
def test_hidden_states_between_hops_are_those_of_the_whole_model(tiny: ModelFolder) -> None:
    ids = some_ids(11)
    whole, first = load_shard(tiny, 0, 6), load_shard(tiny, 0, 3)
    seen: list[torch.Tensor] = []
    hook = whole._model.model.layers[2].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    whole.forward([Row(whole.new_cache(0, 6), 0, ids)], 0, 6)
    hook.remove()
    [hidden] = first.forward([Row(first.new_cache(0, 3), 0, ids)], 0, 3)
    assert torch.equal(hidden, seen[0][0])


@pytest.mark.parametrize("prompt_tokens", [1, 15, 16, 17, 47, 48])
@pytest.mark.parametrize("name", ["tiny", "tiny_tied"])
def test_greedy_ids_equal_generate_in_float32(name: str, prompt_tokens: int, request: pytest.FixtureRequest) -> None:
    folder, prompt = folder_of(name, request), some_ids(prompt_tokens)
    expected, _ = generated(folder, prompt, 24, 16, "float32")
    assert greedy_ids(load_hops(folder, [(0, 6)], "float32"), prompt, 24, 16) == expected


@pytest.mark.parametrize("prompt_tokens", [1, 127, 128, 129, 2047, 2048])
def test_prompts_at_the_borders_of_real_chunks_equal_generate(tiny: ModelFolder, prompt_tokens: int) -> None:
    prompt = some_ids(prompt_tokens)
    expected, _ = generated(tiny, prompt, 4, 128, "float32")
    for executor in ("transformers", "lean"):
        assert greedy_ids(load_hops(tiny, [(0, 1), (1, 6)], "float32", executor), prompt, 4, 128) == expected


@pytest.mark.parametrize("name", ["tiny", "tiny_tied"])
def test_ids_agree_with_generate_in_bfloat16(name: str, request: pytest.FixtureRequest) -> None:
    folder, prompt = folder_of(name, request), some_ids(40)
    expected, logits = generated(folder, prompt, 60, 16, "bfloat16")
    assert_agrees(folder, prompt, expected, logits)


@pytest.mark.parametrize("shape", [{"num_kv_heads": 1}, {"num_heads": 8, "num_kv_heads": 2, "head_dim": 24}])
def test_grouped_heads_and_odd_head_widths_are_served(shape: dict[str, Any], tmp_path: Path) -> None:
    folder = open_model(make_tiny_llama(tmp_path, num_layers=3, **shape))
    prompt = some_ids(20)
    expected, _ = generated(folder, prompt, 12, 16, "float32")
    for executor in ("transformers", "lean"):
        assert greedy_ids(load_hops(folder, [(0, 1), (1, 3)], "float32", executor), prompt, 12, 16) == expected


def test_rotary_scaling_is_that_of_the_whole_model(tmp_path: Path) -> None:
    folder = open_model(
        with_config(make_tiny_llama(tmp_path / "plain", num_layers=3), tmp_path / "scaled", LLAMA3_ROPE)
    )
    prompt = some_ids(40)
    expected, _ = generated(folder, prompt, 8, 16, "float32")
    assert greedy_ids(load_hops(folder, [(0, 1), (1, 3)], "float32"), prompt, 8, 16) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_smollm2_in_three_parts_equals_the_whole(smollm2: ModelFolder, dtype: str) -> None:
    prompt = some_ids(300, 40000)  # longer than two chunks
    whole = load_shard(smollm2, 0, 30, dtype)
    shards = load_hops(smollm2, [(0, 7), (5, 17), (17, 30)], dtype)
    hops = [(shards[0][0], 0, 7), (shards[1][0], 7, 17), (shards[2][0], 17, 30)]
    steps = [*chunks_of(prompt, 128), *((number,) for number in some_ids(6, 40000, seed=8))]
    both = zip(logits_of_steps([(whole, 0, 30)], steps), logits_of_steps(hops, steps), strict=True)
    assert all(torch.equal(one, other) for one, other in both)


def test_smollm2_equals_generate_in_float32(smollm2: ModelFolder) -> None:
    prompt = some_ids(150, 40000)
    expected, _ = generated(smollm2, prompt, 16, 128, "float32")
    assert greedy_ids(load_hops(smollm2, [(0, 13), (13, 30)], "float32"), prompt, 16, 128) == expected


def test_smollm2_agrees_with_generate_in_bfloat16(smollm2: ModelFolder) -> None:
    prompt = some_ids(40, 40000)
    expected, logits = generated(smollm2, prompt, 24, 128, "bfloat16")
    assert_agrees(smollm2, prompt, expected, logits, chunk=128)


def assert_agrees(
    folder: ModelFolder, prompt: list[int], expected: list[int], logits: torch.Tensor, chunk: int = 16
) -> None:
    """Teacher-forced: where ours differs, the margin was small; and it differs rarely."""
    hops = load_hops(folder, [(0, folder.num_layers)], "bfloat16")
    steps = [*chunks_of(prompt, chunk), *((number,) for number in expected[:-1])]
    ours = [int(row.argmax()) for row in logits_of_steps(hops, steps)][-len(expected) :]
    differing = [number for number, pair in enumerate(zip(ours, expected, strict=True)) if pair[0] != pair[1]]
    assert len(differing) <= 0.05 * len(expected)
    assert all(logits[number].max() - logits[number, ours[number]] <= 0.5 for number in differing)


def test_a_shard_has_only_what_it_needs(tiny: ModelFolder, tiny_tied: ModelFolder) -> None:
    def names(folder: ModelFolder, start: int, end: int) -> set[str]:
        return {name.split(".layers.")[0] for name, _ in load_shard(folder, start, end)._model.named_parameters()}

    assert names(tiny, 0, 3) == {"model", "model.embed_tokens.weight"}
    assert names(tiny, 1, 3) == {"model"}
    assert names(tiny, 3, 6) == {"model", "model.norm.weight", "lm_head.weight"}
    assert names(tiny_tied, 0, 3) == {"model", "model.embed_tokens.weight"}
    assert names(tiny_tied, 1, 3) == {"model"}
    assert names(tiny_tied, 3, 6) == {"model", "model.norm.weight", "model.embed_tokens.weight"}


def test_the_dtype_asked_for_is_the_dtype_of_every_weight(tiny: ModelFolder) -> None:
    shard = load_shard(tiny, 0, 6, "float32")
    assert {tensor.dtype for tensor in shard._model.parameters()} == {torch.float32}


def test_it_reads_only_the_tensors_of_its_layers(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, num_layers=12, width=512, intermediate=8192)
    folder = open_model(tmp_path)
    gc.collect()
    before = peak_rss()
    shard = load_shard(folder, 5, 6)
    used = peak_rss() - before
    all_bytes = sum(tensor.num_bytes for tensor in folder.tensors.values())
    assert all_bytes > 300_000_000
    assert used < all_bytes / 4  # one layer of twelve, in the file's pages and copied
    del shard


def peak_rss() -> int:
    """Most bytes of memory, mapped files included, since the last call."""
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is used now
    return peak


def test_a_missing_tensor_is_refused_by_name(tiny_path: Path, tmp_path: Path) -> None:
    folder = open_model(without_tensor(tiny_path, tmp_path / "broken", "model.layers.4.mlp.up_proj.weight"))
    with pytest.raises(ModelError, match=r"model\.layers\.4\.mlp\.up_proj\.weight missing"):
        load_shard(folder, 3, 6)
    load_shard(folder, 0, 4)  # another shard doesn't need it


def test_a_tensor_of_another_shape_is_refused_by_name(tiny_path: Path, tmp_path: Path) -> None:
    wrong = {"model.layers.2.mlp.up_proj.weight": torch.zeros(5, 5, dtype=torch.bfloat16)}
    folder = open_model(without_tensor(tiny_path, tmp_path / "broken", next(iter(wrong)), wrong))
    with pytest.raises(ModelError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        load_shard(folder, 0, 6)


@pytest.mark.parametrize("executor", ["lean", "transformers"])
def test_packed_weights_that_dont_say_so_are_refused_by_name(executor: str, tiny_path: Path, tmp_path: Path) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    packed = {name: torch.zeros(96, 64, dtype=torch.int8)}
    folder = open_model(without_tensor(tiny_path, tmp_path / "packed", name, packed))
    with pytest.raises(ModelError, match=r"model\.layers\.2\.mlp\.up_proj\.weight.*floating point"):
        load_any(folder, 0, 3, executor=executor)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_that_arent_numbers_are_refused_where_they_are_quantized(
    weights: str, tiny_path: Path, tmp_path: Path
) -> None:
    name = "model.layers.2.mlp.up_proj.weight"
    damaged = {name: torch.full((96, 64), torch.nan, dtype=torch.bfloat16)}
    folder = open_model(without_tensor(tiny_path, tmp_path / "damaged", name, damaged))
    with pytest.raises(ModelError, match=r"layers 0–2 hold weights that aren't numbers"):
        load_any(folder, 0, 3, weights=weights)


def test_an_untied_model_without_a_head_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    folder = open_model(without_tensor(tiny_path, tmp_path / "broken", "lm_head.weight"))
    with pytest.raises(ModelError, match=r"lm_head\.weight missing"):
        load_shard(folder, 5, 6)


@pytest.mark.parametrize("layers", [(3, 3), (4, 2), (-1, 3), (0, 7)])
def test_layers_that_the_model_lacks_are_refused(tiny: ModelFolder, layers: tuple[int, int]) -> None:
    with pytest.raises(ModelError, match="0:6"):
        load_shard(tiny, *layers)


def test_an_unknown_dtype_is_refused_with_the_known_ones(tiny: ModelFolder) -> None:
    with pytest.raises(ModelError, match="bfloat16, float32"):
        load_shard(tiny, 0, 6, "float8")


@torch.inference_mode()
def test_a_cache_that_does_not_fit_the_step_is_refused(tiny: ModelFolder) -> None:
    shard = load_shard(tiny, 0, 6)
    with pytest.raises(ValueError, match="other layers"):
        shard.forward([Row(HopCache(0, 3), 0, [5])], 0, 6)
    with pytest.raises(ValueError, match="where the step starts"):
        shard.forward([Row(HopCache(0, 6), 1, [5])], 0, 6)


LLAMA3_ROPE = {
    "rope_parameters": {
        **{"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0},
        **{"high_freq_factor": 4.0, "original_max_position_embeddings": 512},
    }
}


def with_config(source: Path, target: Path, changes: dict[str, Any]) -> Path:
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


def without_tensor(source: Path, target: Path, name: str, replacement: dict[str, torch.Tensor] | None = None) -> Path:
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    del tensors[name]
    save_file(tensors | (replacement or {}), target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_shards_that_are_loaded_at_once_leave_tying_on(tiny_tied: ModelFolder) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for loaded in [pool.submit(load_shard, tiny_tied, 0, tiny_tied.num_layers) for _ in range(8)]:
            loaded.result(60)
    load_shard(tiny_tied, 0, tiny_tied.num_layers)  # which refuses a head that isn't tied to the embedding
