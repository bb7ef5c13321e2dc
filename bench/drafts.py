"""What drafts give: tokens a step and time, on a text that copies its prompt and on free text, with the same tokens.

One node in this process, float32, one thread, greedy; with and without drafts in turn. The wire between nodes adds to
what a step costs, and so to what drafts save: bench/engine.py measures that.

    python -m bench.drafts [--quick] [--json]
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass, field

import torch

from bench.report import finish, options, ratio, spread, table
from bench.rows import COPY, PROMPT
from nodes import catalog
from nodes.deadline import Deadline
from nodes.drafts import DEFAULT_DRAFTS
from nodes.engine import Engine
from nodes.executors import load_shard
from nodes.forwarding import Session
from nodes.generation import Generation
from nodes.pipeline import Pipeline
from nodes.sampling import GREEDY
from nodes.sources import open_model
from nodes.text import Tokenizer

PROMPTS = {"copy": COPY, "free": PROMPT}
MODEL = "smollm2-135m-instruct"
CHUNK_TOKENS = 128
DEADLINE_S = 120.0
_sessions = itertools.count(1)


@dataclass
class Answers:
    """Of one prompt, with drafts or without: a figure for each round."""

    tokens_per_s: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    num_steps: int = 0  # after the prompt, in one round
    drafted: int = 0
    accepted: int = 0


def generate(engine: Engine, prompt_ids: list[int], num_tokens: int, max_drafts: int, into: Answers) -> None:
    """One round."""
    session = f"{next(_sessions):032x}"
    allowed = Session(session, 0, "", "float32", len(prompt_ids) + num_tokens, Deadline.after(DEADLINE_S))
    pipeline = Pipeline(allowed, engine, (0, engine.shard.num_layers), "here", [])
    generation = Generation(pipeline, prompt_ids, GREEDY, CHUNK_TOKENS, max_drafts)
    tokens = generation.tokens(lambda: None)
    into.ids = [next(tokens).token_id]
    prefill_steps, started = pipeline.statistics.num_steps, time.perf_counter()
    into.ids += [token.token_id for token in itertools.islice(tokens, num_tokens - 1)]
    into.tokens_per_s.append((num_tokens - 1) / (time.perf_counter() - started))
    [hop] = pipeline.hop_table()
    into.num_steps, into.drafted, into.accepted = hop["steps"] - prefill_steps, hop["drafted"], hop["accepted"]
    engine.close_session(session, 0, 0.0).result(DEADLINE_S)


def main() -> None:
    asked = options(__doc__)
    num_tokens, num_rounds = (48, 2) if asked.quick else (128, 4)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshweb.node_settings")
    torch.set_num_threads(1)
    folder = open_model(catalog.ensure(MODEL))
    tokenizer = Tokenizer.load(folder)
    engine = Engine(load_shard(folder, 0, folder.num_layers, "float32"), 4096)
    engine.start()
    figures: dict[str, float | None] = {}
    rows = []
    for name, prompt in PROMPTS.items():
        prompt_ids = tokenizer.chat_prompt([{"role": "user", "content": prompt}])
        without, drafted = Answers(), Answers()
        for _ in range(num_rounds):
            generate(engine, prompt_ids, num_tokens, 0, without)
            generate(engine, prompt_ids, num_tokens, DEFAULT_DRAFTS, drafted)
        assert drafted.ids == without.ids, f"drafts changed the {name} text"
        figures[f"accepted_per_step_{name}"] = round(drafted.accepted / drafted.num_steps, 3)
        figures[f"drafted_per_step_{name}"] = round(drafted.drafted / drafted.num_steps, 3)
        figures[f"drafts_over_none_{name}"] = ratio(drafted.tokens_per_s, without.tokens_per_s)
        counts = f"{drafted.accepted} of {drafted.drafted}", f"{num_tokens - 1} in {drafted.num_steps}"
        rows.append([name, spread(without.tokens_per_s), spread(drafted.tokens_per_s), *counts])
    engine.stop(5)
    print(table(["text", "tokens/s, no drafts", "tokens/s, drafts", "accepted", "tokens in steps"], rows))
    finish(figures, asked.json)


if __name__ == "__main__":
    main()
