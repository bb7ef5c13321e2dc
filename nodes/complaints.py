"""What llguidance says is wrong with a form, in words that its user can use.

Its own are of its insides, and quote what the form holds.
"""

from __future__ import annotations

import re

_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): ")
_TOO_MUCH = ("parser error: current row", "parser error: too many", "lexer error", "initial lexer configuration")
_TOO_MUCH_TO_COMPILE = (
    "Unable to determine if regex is empty",
    "too many expressions",
    "xhausted when",
    "can't determine if",
)

NOT_OF_IT = "what has been said so far isn't of the form"


def in_words(error: str) -> str:
    said = _PLACE.sub("", error)
    if said.lower().startswith(_TOO_MUCH) or any(words in said for words in _TOO_MUCH_TO_COMPILE):
        return "the form is too complex: it allows too many different things at once; give it fewer choices"
    if "doesn't satisfy the grammar" in said:
        return NOT_OF_IT
    if "oneOf constraints" in said:
        return "its oneOf has choices that may hold at once, which can't be ruled out; write anyOf"
    if "patternProperty regexes" in said:
        return "its patternProperties have patterns that may fit one name, which can't be kept; make them differ"
    if "Unsatisfiable schema" in said or "Regex is empty" in said:
        return "nothing satisfies it: what it asks for can't all hold at once"
    return "this schema can't be kept token by token: simplify it"
