"""How layers, nodes and numbers are written for people; layers inclusive, while code and wire are half-open."""

from __future__ import annotations

import re
from collections.abc import Mapping

PEER = re.compile(r"\bpeer ([0-9a-f]{32}|[0-9a-f]{8})\b")  # as nodes and relays name a node: whole, or its beginning

# What ends a line, moves a terminal's cursor, colours it, or turns the direction of writing.
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]+")

_INSIDES = (
    (re.compile(r"<[^<>]* (?:object )?at 0x[0-9a-fA-F]+>:?"), "…"),
    (re.compile(r"\b[A-Z]\w*[a-z]\w*[A-Z]\w*\([^()]*\):?"), "…"),  # HTTPConnectionPool(host='…')
    (re.compile(r"\b(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning)\b(?:: *| *)"), ""),
    (re.compile(r"(?<![\w/:.~])(?:~|[A-Za-z]:)?(?:[/\\](?!v1/|api/|rpc/|sessions/)[\w.@+~-]+){2,}[/\\]?"), "…"),
)


def layers_in_words(start_layer: int, end_layer: int) -> str:
    """ "layers 12–17" for [12, 18), "layer 5" for [5, 6)."""
    return f"layer {start_layer}" if end_layer == start_layer + 1 else f"layers {start_layer}–{end_layer - 1}"


def with_names(message: str, names: Mapping[str, str]) -> str:
    """ "node beta" for "peer 528df49b". `names` by peer id; whoever isn't there, or is two of them, stays a peer."""

    def name(found: re.Match[str]) -> str:
        named = [name for peer_id, name in names.items() if peer_id.startswith(found[1])]
        return f"node {named[0]}" if len(named) == 1 else found[0]

    return PEER.sub(name, message)


def one_line(text: str) -> str:
    """What people and nodes give as words, as it is kept, shown and logged: a space for what is no character."""
    return _CONTROL.sub(" ", text).strip()


def presentable(message: str) -> str:
    """What a node says of a fault, without what its programs are called and where they lie on its disk."""
    for pattern, instead in _INSIDES:
        message = pattern.sub(instead, message)
    return message


def counted(number: int, thing: str) -> str:
    """ "1 session", "2 sessions"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def length_in_words(seconds: float) -> str:
    """Coarse: "8 s", "12 min", "3 h", "2 d"; of the larger unit from two of it on."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
