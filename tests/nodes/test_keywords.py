from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from nodes.keywords import MAX_COUNT, MAX_NUMBER, SchemaError
from nodes.schemas import kept_schema


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"maxLength": 3.0}, {"maxLength": 3}),
        ({"minimum": -0.0}, {"minimum": 0}),
        ({"const": MAX_NUMBER}, {"const": MAX_NUMBER}),
        ({"enum": [-MAX_NUMBER, 0.1, True, None, "é"]}, {"enum": [-MAX_NUMBER, 0.1, True, None, "é"]}),
        ({"multipleOf": 0.01}, {"multipleOf": 0.01}),
        ({"multipleOf": 0.000299}, {"multipleOf": 0.000299}),
        ({"type": ["integer", "null"]}, {"type": ["integer", "null"]}),
    ],
)
def test_what_can_be_held_is_kept(schema: Any, kept: Any) -> None:
    written = kept_schema(schema)
    assert written == kept
    assert repr(written) == repr(kept)


@pytest.mark.parametrize(
    ("schema", "place", "words"),
    [
        *(({name: MAX_NUMBER + 1}, f".{name}", "exactly") for name in ("const", "minimum", "exclusiveMaximum")),
        *(({name: value}, f".{name}", "whole number") for name in ("minItems", "maxLength") for value in (-1, 1.5)),
        *(({name: "3"}, f".{name}", "must be a number") for name in ("minimum", "multipleOf", "maxProperties")),
        ({"maximum": -(10**31)}, ".maximum", "exactly"),
        ({"maximum": float("inf")}, ".maximum", "exactly"),
        ({"maximum": float("nan")}, ".maximum", "exactly"),
        ({"minimum": 1e-300}, ".minimum", "nearer to 0"),
        ({"minimum": True}, ".minimum", "must be a number"),
        ({"minLength": 10**12}, ".minLength", f"between 0 and {MAX_COUNT}"),
        ({"multipleOf": 0}, ".multipleOf", "greater than 0"),
        ({"multipleOf": -2}, ".multipleOf", "greater than 0"),
        ({"multipleOf": 0.07}, ".multipleOf", "exactly"),
        ({"multipleOf": 10**7}, ".multipleOf", "rounder"),
        ({"multipleOf": 99_991}, ".multipleOf", "rounder"),
        ({"allOf": [{"multipleOf": 31}, {"multipleOf": 37}]}, ".allOf[1].multipleOf", "too complex"),
        ({"type": "objekt"}, ".type", "must be one or several of array, boolean"),
        ({"type": []}, ".type", "must be one or several"),
        ({"enum": []}, ".enum", "at least one"),
        ({"required": "a"}, ".required", "list of names"),
        ({"pattern": 7}, ".pattern", "must be a string"),
        ({"format": "idn-email"}, ".format", "date, date-time"),
        ({"minimum": 2, "maximum": 1}, ".maximum", "nothing lies between"),
        ({"exclusiveMinimum": 2, "maximum": 2}, ".maximum", "nothing lies between"),
        ({"minItems": 2, "maxItems": 1}, ".maxItems", "nothing lies between"),
    ],
)
def test_what_cant_be_held_is_refused_with_its_place(schema: Any, place: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words) as error:
        kept_schema(schema)
    assert error.value.place == place


def test_no_number_at_any_border_ends_the_process_that_compiles_it() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.nodes.borders"], env=environment, capture_output=True, timeout=120, text=True
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) > 500  # of the schemas were compiled
