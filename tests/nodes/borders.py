"""Schemas whose numbers lie at the borders of what machines count in, compiled: run as a program that may die of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from nodes.keywords import MAX_COUNT, MAX_NUMBER, SchemaError
from nodes.schemas import json_grammar, kept_schema

_SIZES = (0, 0.1, 1e-15, 1, 1.5, 9, 10, 2**31, 2**53 - 2, MAX_NUMBER, 2**63, 10**19)
NUMBERS = tuple(sign * size for size in _SIZES for sign in (1, -1))
COUNTS = (0, 1, 2, 1000, MAX_COUNT, MAX_COUNT + 1)
MULTIPLES = (1, 0.5, 0.01, 7, 100, 299, 10**6, 2**32, 1e-15)
LEAST, MOST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def pairs() -> Iterator[Any]:
    for kind in ("integer", "number"):
        for least in NUMBERS:
            yield {"type": kind, "minimum": least}
            yield {"type": kind, "maximum": least}
            yield {"const": least}
            yield from ({"type": kind, "minimum": least, "maximum": most} for most in NUMBERS)


def mixtures(chance: random.Random, number: int) -> Iterator[Any]:
    for _ in range(number):
        names = [chance.choice(LEAST), chance.choice(MOST)]
        one, other = ({name: chance.choice(NUMBERS) for name in names} for _ in range(2))
        several = {"multipleOf": chance.choice(MULTIPLES)}
        yield {"type": chance.choice(["integer", "number"]), "allOf": [one, other | several]}
        yield {"type": chance.choice(["integer", "number"])} | one | several
        for kind, what in (("array", "Items"), ("string", "Length"), ("object", "Properties")):
            yield {"type": kind, f"min{what}": chance.choice(COUNTS), f"max{what}": chance.choice(COUNTS)}


def main() -> int:
    """How many of them were compiled."""
    tokens, num_compiled = LLTokenizer("byte"), 0
    for schema in (*pairs(), *mixtures(random.Random(0), 100)):
        try:
            text = f"start: {json_grammar(kept_schema(schema))}"
        except SchemaError:
            continue
        num_compiled += not LLMatcher(tokens, text, log_level=0).is_error()
    return num_compiled


if __name__ == "__main__":
    print(main())
