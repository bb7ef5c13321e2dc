"""The rows of the benchmark of decoding: what one round of each does, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.bounds import Spent, spent
from bench.chats import ask, ask_at_once, tokens_per_s_in_all
from bench.generate import Generate
from bench.llama import Llama
from bench.report import median, ratio
from tests.lab.processes import Process
from tests.lab.site import Site

PROMPT = "Write a long story about a lighthouse keeper who finds a map."
TEXT = "The keeper of the old lighthouse climbed the stairs each night with oil for the lamp and a book for the hours. "
_STORY = Path(__file__).with_name("prose.txt").read_text("utf-8").split("\n\n")[1]
COPY = f"Repeat this text word for word: {' '.join(_STORY.split()[:70])}"
NUM_TEXTS = 22  # which are about 512 tokens
NUM_AT_ONCE = 8
CUTS = {1: ["0:30"], 2: ["0:15", "15:30"]}
FLAGS = {"32": ["--dtype", "float32"], "16": ["--dtype", "bfloat16"], "4": ["--weights", "int4"]}  # by bits of a weight
DRAFTS: dict[str, list[str]] = {"off": ["--drafts", "off"], "on": []}
DTYPES = {"32": "float32", "16": "bfloat16"}


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

    @property
    def tokens_per_step(self) -> float:
        return median([each.tokens for each in self.spent])


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
DRAFTING = Mesh(2, "4", drafts="on")


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

    def decode(self, mesh: Mesh, prompt: str = PROMPT, times: int = 1) -> Row:
        num_tokens = times * self._num_tokens

        def measure() -> tuple[float, Spent]:
            first, whole = (ask(self._site, mesh.name, prompt, n, may_end=prompt == COPY) for n in (1, num_tokens))
            return whole.tokens_per_s, spent(first, whole)

        return Row(mesh.title, mesh.bits, measure)

    def drafts(self, mesh: Mesh, text: str, prompt: str) -> Row:
        """Of more tokens: it takes some until there is something to guess from."""
        row = self.decode(mesh, prompt, times=2)
        row.name = f"{mesh.title}, {text}, drafts {mesh.drafts}"
        return row

    def at_once(self, mesh: Mesh) -> Row:
        num_tokens = self._num_tokens + 12  # the first has some before the last one's prompt is through
        prompts = [f"{PROMPT} It begins with number {number}." for number in range(NUM_AT_ONCE)]

        def measure() -> tuple[float, None]:
            return tokens_per_s_in_all(ask_at_once(self._site, mesh.name, prompts, num_tokens)), None

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
