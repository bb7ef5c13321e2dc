"""docs/api.md, row by row, against the running code: its parameters with their examples, and its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.processes import ROOT
from tracker import parameters
from tracker.errors import CODES, ApiError
from tracker.openai import read_chat, read_completion
from tracker.parameters import Table

PAGE = (Path(ROOT) / "docs" / "api.md").read_text()
TOOLS = [{"type": "function", "function": {"name": "now"}}]
# What a parameter only goes with.
WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS},
}
# The tables of parameters as they follow one another in the page, and where one's parameters stand in a request.
PLACES = ["chat", "completion", "stream_options", "meshnet", "message", "part"]
TABLES = [parameters.CHAT, parameters.COMPLETION, parameters.STREAM_OPTIONS, parameters.MESHNET]
TABLES += [parameters.MESSAGE, parameters.PART]


@dataclass(frozen=True)
class Row:
    place: str
    name: str
    use: str
    words: str
    accepted: tuple[Any, ...]
    refused: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.place} {self.name}"

    def request(self, value: Any) -> tuple[dict[str, Any], str]:
        """One in which this parameter has this value, and what an error calls the parameter."""
        fields: dict[str, Any] = {"model": "tiny"} | (WITH.get(self.name, {}) if self.use == "yes" else {})
        fields |= {"prompt": "Hi"} if self.place == "completion" else {"messages": [{"role": "user", "content": "Hi"}]}
        match self.place:
            case "stream_options" | "meshnet":
                own = {"stream": True, self.place: {self.name: value}}
                return fields | own, f"{self.place}.{self.name}"
            case "message":
                message = fields["messages"][0] | {self.name: value}
                return fields | {"messages": [message]}, f"messages[0].{self.name}"
            case "part":
                part = {"type": "text", "text": "Hi"} | {self.name: value}
                fields["messages"][0]["content"] = [part]
                return fields, f"messages[0].content[0].{self.name}"
        return fields | {self.name: value}, self.name


def tables(heading: str) -> list[list[list[str]]]:
    """Those of the page that begin with this cell: their rows' cells."""
    found = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n?)*)", PAGE, re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()] for table in found]


def values(cell: str) -> tuple[Any, ...]:
    return tuple(json.loads(code) for code in re.findall("`([^`]+)`", cell))


def rows() -> Iterator[Row]:
    for place, table in zip(PLACES, tables("parameter"), strict=True):
        for name, use, words, accepted, refused in table:
            yield Row(place, name.strip("`"), use, words, values(accepted), values(refused))


def read(row: Row, value: Any) -> str:
    """What an error calls the parameter. Raises ApiError."""
    fields, param = row.request(value)
    (read_completion if row.place == "completion" else read_chat)(json.dumps(fields).encode())
    return param


ROWS = list(rows())


@pytest.mark.parametrize(("place", "table"), list(zip(PLACES, TABLES, strict=True)))
def test_the_page_has_the_rows_of_the_code_in_their_words(place: str, table: Table) -> None:
    shown = {row.name: (row.use, row.words) for row in ROWS if row.place == place}
    assert shown == {name: ("yes" if row.is_honoured else "no", row.words) for name, row in table.items()}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_the_page_says_is_accepted_is(row: Row) -> None:
    for value in row.accepted:
        read(row, value)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_the_page_says_is_refused_is_refused_by_name(row: Row) -> None:
    for value in row.refused:
        with pytest.raises(ApiError) as refused:
            read(row, value)
        error = refused.value
        assert error.status == 400
        assert (error.param or "").startswith(row.request(value)[1])
        assert row.use == "yes" or error.code == "unsupported_parameter"


@pytest.mark.parametrize("row", [row for row in ROWS if row.use == "no"], ids=str)
def test_the_page_names_all_that_may_be_sent_of_what_is_not_honoured(row: Row) -> None:
    table = TABLES[PLACES.index(row.place)]
    assert row.accepted == (None, *table[row.name].neutral)
    assert row.refused


def test_the_page_shows_every_error_with_its_status() -> None:
    [table] = tables("status")
    shown = [(code.strip("`"), int(status), words) for status, code, words in table]
    assert shown == [(code, meaning.status, meaning.words) for code, meaning in CODES.items()]
