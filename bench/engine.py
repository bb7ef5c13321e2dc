"""How fast a model is decoded: transformers' `generate`, one node, two nodes through the relay, llama.cpp.

All rows are of one run on one machine: the same model, prompt, number of tokens and one thread a process, round by
round in turn. A node is a real `runnode` process, asked through the site, and by another node through the relay's
tunnel.
Tokens per second are those of decoding: the first token isn't counted. Without drafts but for the last table.

    python -m bench.engine [--quick] [--json]

LLAMA_BENCH and LLAMA_RPC_SERVER name the binaries of llama.cpp to be measured, too; LLAMA_GGUF a copy of the
catalogue's GGUF file, which is fetched otherwise.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.bounds import Bound, Spent, bound_table, spent
from bench.chats import ask, ask_at_once, tokens_per_s_in_all
from bench.generate import Generate
from bench.llama import Llama, binaries
from bench.report import finish, median, options, ratio, spread, table
from nodes import catalog
from nodes.weights import open_model
from tests.lab.processes import Process, manage
from tests.lab.site import Site

MODEL = "smollm2-135m-instruct"
PROMPT = "Write a long story about a lighthouse keeper who finds a map."
COPY = "Repeat this list of numbers word for word, and then once more: " + " ".join(map(str, range(101, 161)))
TEXT = "The keeper of the old lighthouse climbed the stairs each night with oil for the lamp and a book for the hours. "
STARTED = time.perf_counter()
NUM_TEXTS = 22  # which are about 512 tokens
NUM_AT_ONCE = 8
CUTS = {1: ["0:30"], 2: ["0:15", "15:30"]}
FLAGS = {"32": ["--dtype", "float32"], "16": ["--dtype", "bfloat16"], "4": ["--weights", "int4"]}  # by bits of a weight
DRAFTS: dict[str, list[str]] = {"off": ["--drafts", "off"], "on": []}
DTYPES = {"32": "float32", "16": "bfloat16"}
BYTES = {"32": 4.0, "16": 2.0, "4": 4.5 / 8}  # of a weight, with its share of the group's scale and zero


@dataclass
class Row:
    """A line of a table. `measure`: one round, in tokens per second, and of a mesh what a token's time went into."""

    name: str
    bits: str
    measure: Callable[[], tuple[float, Spent | None]]
    figures: list[float] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)

    def run(self) -> None:
        figure, spent = self.measure()
        self.figures.append(figure)
        self.spent += [spent] if spent else []

    def over(self, other: Row) -> float:
        return ratio(self.figures, other.figures)


@dataclass(frozen=True)
class Mesh:
    """Nodes with the whole model between them, under a name of their own."""

    num_nodes: int
    bits: str
    drafts: str = "off"

    @property
    def name(self) -> str:
        return f"{self.num_nodes}-nodes-{self.bits}-bits-drafts-{self.drafts}"

    @property
    def title(self) -> str:
        return {1: "one node", 2: "two nodes, the relay's tunnel"}[self.num_nodes]

    def start(self, site: Site, model: Path, folder: Path) -> list[Process]:
        """A symbolic link gives the model another name."""
        link = folder / self.name
        link.symlink_to(model, target_is_directory=True)
        flags = FLAGS[self.bits] + DRAFTS[self.drafts]
        return [site.start_node(f"{self.name}-{n}", link, cut, *flags) for n, cut in enumerate(CUTS[self.num_nodes])]


MESHES = [Mesh(num_nodes, bits) for num_nodes in CUTS for bits in FLAGS]


class Bench:
    """Makes the rows of one run. `num_tokens`: of each answer."""

    def __init__(self, site: Site, generate: Generate, num_tokens: int) -> None:
        self._site, self._generate, self._num_tokens = site, generate, num_tokens
        name = MESHES[0].name
        self._prompt_ids = ask(site, name, PROMPT, 1).prompt_ids
        self._text_ids = ask(site, name, TEXT * NUM_TEXTS, 1, is_chat=False).prompt_ids
        self.num_prefill = len(self._text_ids)

    def generate(self, bits: str, num_sequences: int = 1) -> Row:
        def measure() -> tuple[float, None]:
            times = self._generate.decode(DTYPES[bits], self._prompt_ids, self._num_tokens, num_sequences)
            return num_sequences * (len(times) - 1) / times[-1], None

        return Row("transformers `generate`", bits, measure)

    def decode(self, mesh: Mesh, prompt: str = PROMPT) -> Row:
        def measure() -> tuple[float, Spent]:
            first, whole = (ask(self._site, mesh.name, prompt, count) for count in (1, self._num_tokens))
            return whole.tokens_per_s, spent(first, whole)

        return Row(mesh.title, mesh.bits, measure)

    def at_once(self, mesh: Mesh) -> Row:
        prompts = [f"{PROMPT} It begins with number {number}." for number in range(NUM_AT_ONCE)]

        def measure() -> tuple[float, None]:
            return tokens_per_s_in_all(ask_at_once(self._site, mesh.name, prompts, 2 * self._num_tokens)), None

        return Row(mesh.title, mesh.bits, measure)

    def prefill_of_generate(self, bits: str) -> Row:
        def measure() -> tuple[float, None]:
            return self.num_prefill / self._generate.prefill_s(DTYPES[bits], self._text_ids), None

        return Row("transformers `generate`", bits, measure)

    def prefill(self, mesh: Mesh) -> Row:
        def measure() -> tuple[float, None]:
            chat = ask(self._site, mesh.name, TEXT * NUM_TEXTS, 1, is_chat=False)
            return self.num_prefill / chat.first_token_s, None

        return Row(mesh.title, mesh.bits, measure)

    def llama(self, llama: Llama, *, is_split: bool) -> Row:
        name = "llama.cpp, two RPC servers" if is_split else "llama.cpp"
        return Row(name, "4", lambda: (llama.decode(self._num_tokens, is_split=is_split), None))


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
    of_llama = (
        {"llama": bench.llama(llama, is_split=False), "llama-rpc": bench.llama(llama, is_split=True)} if llama else {}
    )
    one = {mesh.bits: mesh for mesh in MESHES if mesh.num_nodes == 1}
    two = {mesh.bits: mesh for mesh in MESHES if mesh.num_nodes == 2}
    decode = {f"generate-{bits}": bench.generate(bits) for bits in DTYPES}
    decode |= {f"{mesh.num_nodes}-{mesh.bits}": bench.decode(mesh) for mesh in MESHES} | of_llama
    at_once = {"1-16": bench.at_once(one["16"]), "2-16": bench.at_once(two["16"])}
    prefill = {"generate-32": bench.prefill_of_generate("32"), "1-32": bench.prefill(one["32"])}
    if not is_quick:
        at_once = {"generate-16": bench.generate("16", NUM_AT_ONCE), **at_once, "1-4": bench.at_once(one["4"])}
        prefill |= {"generate-16": bench.prefill_of_generate("16")}
        prefill |= {mesh.name: bench.prefill(mesh) for mesh in (two["32"], one["16"], one["4"])}
    return Tables(decode, at_once, prefill, {})


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
    rounds, num_tokens = (2, 20) if chosen.quick else (7, 64)
    model = Path(manage("fetchmodel", MODEL).splitlines()[-1])
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        site = stack.enter_context(Site(folder / "mesh"))
        generate = stack.enter_context(Generate(model, list(DTYPES.values())))
        say("loading")
        for mesh, nodes in [(mesh, mesh.start(site, model, folder)) for mesh in MESHES]:
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
    print(f"A prompt of {bench.num_prefill} tokens:\n{_table(found.prefill, found.prefill['generate-32'])}")


def _table(rows: dict[str, Row], base: Row) -> str:
    lines = [[row.name, row.bits, spread(row.figures), f"{row.over(base):.2f}"] for row in rows.values()]
    return table(["", "bits", "tokens/s", "over generate, 32 bits"], lines)


def _bounds(rows: dict[str, Row], model: Path, llama: Llama | None) -> list[Bound]:
    num_weights = sum(tensor.num_elements for tensor in open_model(model).tensors.values())
    found = []
    for name, row in rows.items():
        num_bytes = llama.num_bytes if llama and name.startswith("llama") else int(num_weights * BYTES[row.bits])
        found.append(Bound(row.name, row.bits, num_bytes, 1000 / median(row.figures), row.spent))
    return found


if __name__ == "__main__":
    main()
