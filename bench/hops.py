"""What a hop costs: the whole model on one node, and cut over two that talk directly, through the tunnel or the relay.

All through the same site, with real `runnode` processes of one thread each, the same prompt and number of tokens,
round by round in turn. Tokens per second are those of decoding: the first token is not counted.

    python -m bench.hops [--quick] [--json]
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.chats import ask
from bench.report import finish, median, options, ratio, spread, table
from tests.lab.processes import manage
from tests.lab.site import Site

PROMPT = "Write a long story about a lighthouse keeper who finds a map."


@dataclass(frozen=True)
class Run:
    tokens_per_s: float
    ttft_ms: float
    hop_ms: float  # of the second hop, per step: network, queue and compute
    compute_ms: float


@dataclass
class Variant:
    name: str
    cuts: list[str]
    reach: tuple[str, ...]
    path: str
    wire_versions: str = ""
    runs: list[Run] = field(default_factory=list)

    def figures(self, name: str) -> list[float]:
        return [getattr(run, name) for run in self.runs]


VARIANTS = [
    Variant("single", ["0:30"], ("--relay-only",), ""),
    Variant("direct", ["0:15", "15:30"], ("--listen", "auto", "--no-relay"), "direct"),
    Variant("tunnel", ["0:15", "15:30"], ("--relay-only",), "tunnel"),
    Variant("relay", ["0:15", "15:30"], ("--relay-only",), "relay", wire_versions="1"),
]


def measure(site: Site, variant: Variant, num_tokens: int) -> Run:
    """One chat of `num_tokens`."""
    chat = ask(site, variant.name, PROMPT, num_tokens)
    assert [hop["path"] for hop in chat.hops[1:]] == [variant.path] * (len(variant.cuts) - 1)
    second = chat.hops[1] if len(chat.hops) > 1 else {"ms_total": 0.0, "compute_ms": 0.0, "steps": 1}
    return Run(
        tokens_per_s=chat.tokens_per_s,
        ttft_ms=chat.first_token_s * 1000,
        hop_ms=second["ms_total"] / second["steps"],
        compute_ms=second["compute_ms"] / second["steps"],
    )


def main() -> None:
    chosen = options(__doc__)
    rounds, num_tokens = (3, 24) if chosen.quick else (9, 64)
    model = Path(manage("fetchmodel", "smollm2-135m-instruct").splitlines()[-1])
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder) / "mesh") as site, ExitStack() as meshes:
        for variant in VARIANTS:
            link = Path(folder) / variant.name
            link.symlink_to(model, target_is_directory=True)
            flags = (*variant.reach, "--drafts", "off")  # so that each step gives a token
            nodes = site.mesh(link, variant.cuts, *flags, MESHNET_WIRE_VERSIONS=variant.wire_versions)
            meshes.enter_context(nodes)
        for number in range(rounds + 1):
            for variant in VARIANTS:
                run = measure(site, variant, num_tokens)
                if number:  # the first round warms up
                    variant.runs.append(run)
    print(table(["", "tokens/s", "ttft ms", "hop ms per step", "of it compute"], [row(v) for v in VARIANTS]))
    single, *cut = (variant.figures("tokens_per_s") for variant in VARIANTS)
    names = [variant.name for variant in VARIANTS[1:]]
    finish({f"{name}_over_single": ratio(rates, single) for name, rates in zip(names, cut, strict=True)}, chosen.json)


def row(variant: Variant) -> list[str]:
    per_step = [f"{median(variant.figures(name)):.2f}" for name in ("hop_ms", "compute_ms")]
    spreads = [spread(variant.figures(name)) for name in ("tokens_per_s", "ttft_ms")]
    return [variant.name, *spreads, *(per_step if variant.path else ["", ""])]


if __name__ == "__main__":
    main()
