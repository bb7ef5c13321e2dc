"""Regular expressions of schemas: how much there is of each, and what no grammar can keep of them.

A pattern of a few characters may say millions of things: `(a{1000}){1000}`. Whoever compiles it works through each, so
they are counted before that: its size is that of the pattern with all repetitions written out.
"""

from __future__ import annotations

import re
from typing import NoReturn

MAX_SIZE = 2_000  # of all patterns of a schema: some milliseconds for a token, 100 to compile
_WIDE = 4  # what a class of many characters counts: each of them has up to four bytes

_TIMES = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_ESCAPE = re.compile(r"\\(?:[pP]\{[^}]*\}|[xuU]\{[^}]*\}|.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|[imsuU-]*:))?")
_FLAGS = re.compile(r"\(\?[imsuU-]+\)")
_LOOK = ("(?=", "(?!", "(?<=", "(?<!")


class PatternError(ValueError):
    """The pattern can't be kept: the words say why."""


def size_of(pattern: str) -> int:
    """Characters of the pattern with all repetitions written out. Raises PatternError."""
    groups, at = [_Group()], 0
    while at < len(pattern):
        found, size = _read(pattern, at)
        if found.startswith("(") and size == 0:
            groups.append(_Group())
        elif found == ")":
            if len(groups) == 1:
                raise PatternError("can't be read: it has a ) too many")
            inside = groups.pop()
            groups[-1].add(inside.size)
        elif times := _TIMES.fullmatch(found):
            groups[-1].repeat(_most(times))
        else:
            groups[-1].add(size)
        at += len(found)
    if len(groups) > 1:
        raise PatternError("can't be read: a ( has no end")
    return groups[0].size


class _Group:
    """What stands between two parentheses."""

    def __init__(self) -> None:
        self.size, self._last = 1, 1

    def add(self, size: int) -> None:
        self.size, self._last = self.size + size, size

    def repeat(self, times: int) -> None:
        self.size += self._last * (times - 1)
        self._last *= times


def _read(pattern: str, at: int) -> tuple[str, int]:
    """(what begins there, its size). Of groups what opens them, of the size 0."""
    char = pattern[at]
    if char == "\\":
        return _escape(pattern, at)
    if char == "[":
        found = _CLASS.match(pattern, at) or _unreadable("a [ has no end")
        is_wide = found[0].startswith("[^") or "\\" in found[0] or not found[0].isascii()
        return found[0], _WIDE if is_wide else 1
    if char == "(":
        if pattern.startswith(_LOOK, at):
            raise PatternError("looks ahead or behind, which can't be kept token by token: write it without")
        if flags := _FLAGS.match(pattern, at):
            return flags[0], 1
        found = _GROUP.match(pattern, at) or _unreadable("")
        return (
            (found[0], 0) if not pattern.startswith("(?", at) or len(found[0]) > 1 else _unreadable("a (? isn't known")
        )
    if char == "{":
        times = _TIMES.match(pattern, at) or _unreadable("a { is neither {2}, {2,} nor {2,3}; write \\{ for the sign")
        return times[0], 0
    return char, _WIDE if char == "." else 1


def _escape(pattern: str, at: int) -> tuple[str, int]:
    found = _ESCAPE.match(pattern, at) or _unreadable("it ends in a backslash")
    if found[0][1] in "123456789k":
        raise PatternError("refers back to a group, which can't be kept token by token: write it without")
    if found[0][1] in "bB":
        raise PatternError("has \\b, which isn't supported: write what may stand there")
    return found[0], _WIDE if found[0][1] in "pPwWDSs" else 1


def _most(times: re.Match[str]) -> int:
    least, comma, most = times.groups()
    if most and int(most) < int(least):
        raise PatternError("can't be read: the second number in braces is below the first")
    return max(1, int(most) if most else int(least) + bool(comma))


def _unreadable(why: str) -> NoReturn:
    raise PatternError(f"can't be read: {why}")
