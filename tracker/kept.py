"""What is kept and logged of a request that was refused: its code and its place, and no word that the client wrote.

A refusal's message is the client's, and may hold a part of what it sent: a pattern of its schema, a name, a role.
"""

from __future__ import annotations

import re

from tracker import parameters
from tracker.errors import CODES, ApiError, told

_TABLES = (parameters.CHAT, parameters.COMPLETION, parameters.STREAM_OPTIONS, parameters.MESHNET)
_OF_FORMS = {"function", "parameters", "json_schema", "schema", "type", "name", "id", "arguments", "strict"}
_NAMES = {"days", *_OF_FORMS}.union(*_TABLES, parameters.MESSAGE, parameters.PART)
_PART = re.compile(r"(\w+)(?:\[\d+\])*", re.ASCII)


def words_of(error: ApiError) -> str:
    """The message of what a node or the site has done; of what the client has, its code's meaning and the place."""
    if error.status >= 429:
        return error.message
    code, place = told(error).code or "", place_of(error.param)
    return CODES[code].words + (f": {place}" if place else "")


def in_a_line(error: ApiError) -> str:
    """ "400 invalid_value, messages[0].content" """
    place = place_of(error.param)
    return f"{error.status} {error.code}" + (f", {place}" if place else "")


def place_of(param: str | None) -> str:
    """As far as its names are the API's own: those behind are the client's, as the properties of a schema are."""
    known: list[str] = []
    for part in (param or "").split("."):
        found = _PART.fullmatch(part)
        if not found or found[1] not in _NAMES:
            break
        known.append(part)
    return ".".join(known)
