"""What every benchmark shares: its options, medians with their spread, and the last line as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence


def options(description: str | None) -> argparse.Namespace:
    return parser(description).parse_args()


def parser(description: str | None, quick: str = "under a minute, fewer rounds") -> argparse.ArgumentParser:
    """For benchmarks that take more than the options of all."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--json", action="store_true", help="the figures as one JSON object on the last line")
    return made


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """`median (least–most)`"""
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios pair by pair, so that a drift of the machine's speed cancels."""
    return round(median([a / b for a, b in zip(above, below, strict=True)]), 3)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def finish(figures: Mapping[str, float | None], as_json: bool) -> None:
    for name, value in figures.items():
        print(f"{name}: {value}")
    if as_json:
        print(json.dumps(dict(figures)))
