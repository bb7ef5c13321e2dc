"""How fast a model is decoded: transformers' `generate`, one node, two nodes through the relay, llama.cpp.

All rows are of one run on one machine: the same model, prompt, number of tokens and one thread a process, round by
round in turn. A node is a real `runnode` process, asked through the site, and by another node through the tunnel.
Tokens per second are those of decoding: the first token isn't counted. Drafts are off but for a table of their own in
the full run.

    python -m bench.engine [--quick] [--json]

LLAMA_BENCH and LLAMA_RPC_SERVER name the binaries of llama.cpp to be measured, too; LLAMA_GGUF a copy of the
catalogue's GGUF file, which is fetched otherwise.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.bounds import Bound, bound_table
from bench.generate import Generate
from bench.llama import Llama, binaries
from bench.report import finish, median, options, spread, table
from bench.rows import COPY, DRAFTING, DTYPES, MESHES, NUM_AT_ONCE, PROMPT, Bench, Row
from nodes import catalog
from nodes.sources import open_model
from nodes.weights import layer_of
from tests.lab.processes import manage
from tests.lab.site import Site

MODEL = "smollm2-135m-instruct"
# Of a weight in a layer, and in the table of tokens, with their share of scales and zeros (nodes/quantize.py).
BYTES = {"32": (4.0, 4.0), "16": (2.0, 2.0), "4": (5 / 8, 1.0)}
STARTED = time.perf_counter()


@dataclass
class Tables:
    """Rows by a short name, table by table."""

    decode: dict[str, Row]
    at_once: dict[str, Row]
    prefill: dict[str, Row]
    drafts: dict[str, Row]

    def rows(self) -> list[Row]:
        return [row for rows in (self.decode, self.at_once, self.prefill, self.drafts) for row in rows.values()]


def tables(bench: Bench, llama: Llama | None, *, is_quick: bool) -> Tables:
    of_llama = {name: bench.llama(llama, is_split=name != "llama") for name in ("llama", "llama-rpc") if llama}
    one = {mesh.bits: mesh for mesh in MESHES if mesh.num_nodes == 1}
    two = {mesh.bits: mesh for mesh in MESHES if mesh.num_nodes == 2}
    decode = {f"generate-{bits}": bench.generate(bits) for bits in DTYPES}
    decode |= {f"{mesh.num_nodes}-{mesh.bits}": bench.decode(mesh) for mesh in MESHES} | of_llama
    at_once = {"1-16": bench.at_once(one["16"])}
    prefill = {"generate-32": bench.prefill_of_generate("32"), "1-32": bench.prefill(one["32"])}
    if not is_quick:
        at_once = {f"generate-{bits}": bench.generate(bits, NUM_AT_ONCE) for bits in DTYPES} | at_once
        at_once |= {mesh.name: bench.at_once(mesh) for mesh in (two["16"], one["4"], two["4"])}
        prefill |= {"generate-16": bench.prefill_of_generate("16")}
        prefill |= {mesh.name: bench.prefill(mesh) for mesh in (two["32"], one["16"], one["4"])}
    texts, plain = {} if is_quick else {"free text": PROMPT, "a copied text": COPY}, two[DRAFTING.bits]
    drafts = {
        f"{text}-{mesh.drafts}": bench.drafts(mesh, text, texts[text]) for text in texts for mesh in (plain, DRAFTING)
    }
    return Tables(decode, at_once, prefill, drafts)


def figures(found: Tables) -> dict[str, float | None]:
    base, decode = found.decode["generate-32"], found.decode
    return {
        "one_node_over_generate": decode["1-32"].over(base),
        "two_nodes_over_generate": decode["2-32"].over(base),
        "int4_two_nodes_over_generate": decode["2-4"].over(base),
        "batch8_over_one": found.at_once["1-16"].over(base),
        "batch8_over_own_one": found.at_once["1-16"].over(decode["1-16"]),
        "prefill_over_generate": found.prefill["1-32"].over(found.prefill["generate-32"]),
        "int4_two_nodes_over_llama_rpc": decode["2-4"].over(decode["llama-rpc"]) if "llama-rpc" in decode else None,
    }


def main() -> None:
    chosen = options(__doc__)
    rounds, num_tokens = (2, 16) if chosen.quick else (7, 64)
    meshes = MESHES if chosen.quick else [*MESHES, DRAFTING]
    model = Path(manage("fetchmodel", MODEL).splitlines()[-1])
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        site = stack.enter_context(Site(folder / "mesh"))
        generate = stack.enter_context(Generate(model, list(DTYPES.values())))
        say("loading")
        for mesh, nodes in [(mesh, mesh.start(site, model, folder)) for mesh in meshes]:
            stack.enter_context(site.serving(mesh.name, nodes))
        llama = stack.enter_context(Llama(*named, gguf(folder))) if (named := binaries()) else None
        bench = Bench(site, generate, num_tokens)
        found = tables(bench, llama, is_quick=chosen.quick)
        for number in range(1, rounds + 1):
            say(f"round {number} of {rounds}")
            for row in found.rows():
                row.run()
        bounds = bound_table(_bounds(found.decode, model, llama), generate.stream_ms)
    show(found, bench, num_tokens)
    print(f"\nWhat a token's time goes into, ms:\n{bounds}\n")
    finish(figures(found), chosen.json)


def say(line: str) -> None:
    print(f"{time.perf_counter() - STARTED:.0f} s: {line}", file=sys.stderr)


def gguf(folder: Path) -> Path:
    given = os.environ.get("LLAMA_GGUF", "")
    return Path(given) if given else catalog.fetch_gguf(MODEL, folder)


def show(found: Tables, bench: Bench, num_tokens: int) -> None:
    base = found.decode["generate-32"]
    print(f"One sequence, {num_tokens} tokens:\n{_table(found.decode, base)}\n")
    print(f"{NUM_AT_ONCE} sequences at once, tokens in all:\n{_table(found.at_once, base)}\n")
    print(f"A prompt of {bench.num_prefill} tokens:\n{_table(found.prefill, found.prefill['generate-32'])}\n")
    if found.drafts:
        print(f"With drafts, {2 * num_tokens} tokens:\n{_table_of_drafts(found.drafts)}")


def _table(rows: dict[str, Row], base: Row) -> str:
    lines = [[row.name, row.bits, spread(row.figures), f"{row.over(base):.2f}"] for row in rows.values()]
    return table(["", "bits", "tokens/s", "over generate, 32 bits"], lines)


def _table_of_drafts(rows: dict[str, Row]) -> str:
    """Each text without drafts, then with them."""
    plain = {name: rows[name.replace("-on", "-off")] for name in rows}
    lines = [
        [row.name, row.bits, spread(row.figures), f"{row.over(plain[name]):.2f}", f"{row.tokens_per_step:.2f}"]
        for name, row in rows.items()
    ]
    return table(["", "bits", "tokens/s", "over drafts off", "tokens a step"], lines)


def _bounds(rows: dict[str, Row], model: Path, llama: Llama | None) -> list[Bound]:
    found = []
    for name, row in rows.items():
        num_bytes = llama.num_bytes if llama and name.startswith("llama") else _num_bytes(model, row.bits)
        found.append(Bound(row.name, row.bits, num_bytes, 1000 / median(row.figures), row.spent))
    return found


def _num_bytes(model: Path, bits: str) -> int:
    """Of weights that a token reads: all of them, because the table of tokens is the head, too."""
    in_layer, in_table = BYTES[bits]
    tensors = open_model(model).tensors.items()
    return int(
        sum(tensor.num_elements * (in_table if layer_of(name) is None else in_layer) for name, tensor in tensors)
    )


if __name__ == "__main__":
    main()
