"""What quantized weights cost in quality: the perplexity of a fixed text, bench/prose.txt, against dense weights.

The text was written for this and nothing else, so no model has seen it. It goes through all layers in chunks, as a
prompt does; each token's loss is taken from the logits before it. One executor, one dtype, one thread.

    python -m bench.perplexity [--quick] [--json]
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from bench.report import finish, options, table
from nodes.executors import load_shard
from nodes.options import WEIGHTS
from nodes.shard import Row, Shard
from nodes.sources import open_model
from nodes.text import Tokenizer
from nodes.weights import ModelFolder

MODEL, DTYPE = "smollm2-135m-instruct", "bfloat16"
PROSE = Path(__file__).with_name("prose.txt")
CHUNK_TOKENS = 128
QUICK_TOKENS = 768


def main() -> None:
    """Keys: `dense_perplexity`, `int8_over_dense`, `int4_over_dense`."""
    asked = options(__doc__)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshweb.node_settings")  # where the catalogue's cache is
    torch.set_num_threads(1)
    folder = open_model(MODEL)
    ids = prose_ids(folder)
    if asked.quick:
        ids = ids[:QUICK_TOKENS]
    found, rows = {}, []
    for weights in WEIGHTS:
        started = time.perf_counter()
        shard = load_shard(folder, 0, folder.num_layers, DTYPE, weights=weights)
        found[weights] = perplexity(shard, ids)
        taken_s = time.perf_counter() - started
        rows.append([weights, f"{found[weights]:.3f}", f"{found[weights] / found['dense']:.4f}", f"{taken_s:.1f}"])
    print(f"{MODEL} in {DTYPE}, {len(ids)} tokens of {PROSE.name}, chunks of {CHUNK_TOKENS}\n")
    print(table(["weights", "perplexity", "over dense", "s"], rows), "\n")
    figures: dict[str, float | None] = {"dense_perplexity": round(found["dense"], 3)}
    figures |= {f"{weights}_over_dense": round(found[weights] / found["dense"], 4) for weights in ("int8", "int4")}
    finish(figures, asked.json)


def prose_ids(folder: ModelFolder) -> list[int]:
    return list(Tokenizer.load(folder).plain_prompt(PROSE.read_text("utf-8")))


def perplexity(shard: Shard, ids: list[int], chunk_tokens: int = CHUNK_TOKENS) -> float:
    """Of a text's ids under a shard that is the whole model."""
    layers = (0, shard.num_layers)
    with torch.inference_mode():
        cache, loss = shard.new_cache(*layers, room_tokens=len(ids)), 0.0
        for start in range(0, len(ids) - 1, chunk_tokens):
            chunk, wanted = ids[start : start + chunk_tokens], ids[start + 1 : start + 1 + chunk_tokens]
            (logits,) = shard.forward([Row(cache, start, chunk, len(chunk))], *layers)
            loss += float(cross_entropy(logits[: len(wanted)], torch.tensor(wanted), reduction="sum"))
    return math.exp(loss / (len(ids) - 1))


if __name__ == "__main__":
    main()
