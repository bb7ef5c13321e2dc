"""What a shard takes of memory: half of a model's layers against all of them, and while it loads against what it keeps.

The model is made for this: random numbers, 64 layers, and so few tokens that embedding and head weigh nothing. Each
load is in a process of its own. Counted is the most that was resident (VmHWM) above what the same process had when it
had imported, loaded and run a model of one layer.

    python -m bench.memory [--quick] [--json]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.report import finish, options, table

NUM_LAYERS, CHUNK_TOKENS = 64, 128
WIDTH, INTERMEDIATE, NUM_HEADS, NUM_KV_HEADS, VOCABULARY = 512, 1408, 8, 4, 256
DEADLINE_S = 120
MB = 1e6
QUICK = [("lean", "dense"), ("transformers", "dense"), ("lean", "int4")]
ALL = [(executor, weights) for executor in ("lean", "transformers") for weights in ("dense", "int8", "int4")]


@dataclass(frozen=True)
class Peaks:
    """In bytes: of what is kept, at most while loading, and at most in all, a chunk of a prompt included."""

    kept: int
    loading: int
    whole: int


def main() -> None:
    """Keys: `half_shard_peak_over_whole` and `loading_peak_over_shard`, the worst of the rows."""
    asked = options(__doc__)
    rows, halves, loadings = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "small", 1)
        make_model(Path(folder) / "large", NUM_LAYERS)
        for executor, weights in QUICK if asked.quick else ALL:
            half, whole = (_measured(folder, executor, weights, end) for end in (NUM_LAYERS // 2, NUM_LAYERS))
            halves.append(half.whole / whole.whole)
            loadings.append(max(peaks.loading / peaks.kept for peaks in (half, whole)))
            megabytes = [f"{number / MB:.0f}" for number in (half.kept, half.loading, whole.kept, whole.loading)]
            rows.append([executor, weights, *megabytes, f"{halves[-1]:.3f}", f"{loadings[-1]:.3f}"])
    print(f"{NUM_LAYERS} layers of width {WIDTH}, MB above an empty process\n")
    header = [
        "executor",
        "weights",
        "half",
        "loading",
        "whole",
        "loading",
        "half's peak over whole's",
        "loading over kept",
    ]
    print(table(header, rows), "\n")
    found = {"half_shard_peak_over_whole": max(halves), "loading_peak_over_shard": max(loadings)}
    finish({name: round(value, 3) for name, value in found.items()}, asked.json)


def make_model(folder: Path, num_layers: int) -> None:
    """Writes a llama of random numbers, layer by layer into files of their own."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    folder.mkdir()
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=num_layers,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    kv_width = WIDTH // NUM_HEADS * NUM_KV_HEADS
    layer = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (kv_width, WIDTH),
        "self_attn.v_proj": (kv_width, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (INTERMEDIATE, WIDTH),
        "mlp.up_proj": (INTERMEDIATE, WIDTH),
        "mlp.down_proj": (WIDTH, INTERMEDIATE),
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
    }
    parts = [{f"model.layers.{number}.{name}": shape for name, shape in layer.items()} for number in range(num_layers)]
    parts.append({"model.embed_tokens": (VOCABULARY, WIDTH), "model.norm": (WIDTH,), "lm_head": (VOCABULARY, WIDTH)})
    places: dict[str, str] = {}
    for number, part in enumerate(parts):
        file = f"model-{number + 1:05}-of-{len(parts):05}.safetensors"
        save_file(
            {f"{name}.weight": (torch.randn(shape) * 0.02).bfloat16() for name, shape in part.items()}, folder / file
        )
        places |= {f"{name}.weight": file for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _measured(folder: str, executor: str, weights: str, end_layer: int) -> Peaks:
    arguments = [sys.executable, "-m", "bench.memory", "load", folder, executor, weights, str(end_layer)]
    run = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE_S)
    return Peaks(**json.loads(run.stdout.splitlines()[-1]))


def _load(folder: Path, executor: str, weights: str, end_layer: int) -> Peaks:
    """In a process of its own: layers from the first on."""
    import torch

    from nodes import memory
    from nodes.executors import load_shard
    from nodes.shard import Row
    from nodes.sources import open_model

    torch.set_num_threads(1)

    def load(name: str, end_layer: int) -> object:
        return load_shard(open_model(folder / name), 0, end_layer, "bfloat16", weights=weights, executor=executor)

    def run(shard: object, end_layer: int) -> None:
        with torch.inference_mode():
            row = Row(shard.new_cache(0, end_layer, CHUNK_TOKENS), 0, [1] * CHUNK_TOKENS, 1)  # type: ignore[attr-defined]
            shard.forward([row], 0, end_layer)  # type: ignore[attr-defined]

    run(load("small", 1), 1)
    large = open_model(folder / "large")
    elements = {name: tensor.num_elements for name, tensor in large.tensors_of(0, end_layer).items()}
    before = _resident()
    shard = load("large", end_layer)
    loading = _peak() - before
    run(shard, end_layer)
    return Peaks(memory.weight_bytes(elements, "bfloat16", weights), loading, _peak() - before)


def _resident() -> int:
    """What is resident now; the peak begins from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        path, executor, weights, end = sys.argv[2:]
        print(json.dumps(asdict(_load(Path(path), executor, weights, int(end)))))
    else:
        main()
