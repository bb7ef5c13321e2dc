"""Tool calls in the text of an answer: what a model writes between its markup, as content and calls.

A head streams the text as the model writes it and says once which markup that is; clients get `tool_calls`. So a head
that goes on with another's answer needs to know nothing of calls. What reads as a call and then turns out to be none is
content: nothing is lost and nothing raises, whatever a model writes. How the text is cut into pieces changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

MAX_MARK_CHARS = 100
FUNCTION_NAME = "[a-zA-Z0-9_-]{1,64}"
_SPACE = r"[ \t\n\r]*"
_NOTABLE = re.compile(r'["\\{}]')  # of a JSON value: what opens, closes, quotes and escapes


@dataclass(frozen=True, slots=True)
class Markup:
    """How a model's family writes calls. Spaces around the marks don't matter here."""

    begin: str  # before a call, or before the first; empty: an answer is calls from its first character, or has none
    end: str
    separator: str
    arguments: str  # what the arguments are called beside the name

    @classmethod
    def read(cls, value: object) -> Markup:
        """As a head tells it. Raises TypeError, KeyError, ValueError."""
        if not isinstance(value, dict):
            raise TypeError("a markup was expected")
        marks = tuple(value[name] for name in ("begin", "end", "separator", "arguments"))
        if not all(isinstance(mark, str) and len(mark) <= MAX_MARK_CHARS for mark in marks):
            raise TypeError("a mark was expected")
        return cls(*marks)


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    index: int
    text: str  # a piece of JSON


Piece = Content | CallStart | ArgumentsPiece


@dataclass(slots=True)
class Call:
    name: str
    arguments: str = ""  # JSON as the model wrote it


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole answer."""

    content: str
    calls: list[Call]
    is_complete: bool  # there are calls, and the last was written to its end


def read(text: str, markup: Markup) -> Reading:
    reader, content, calls = CallReader(markup), "", list[Call]()
    for piece in [*reader.feed(text), *reader.finish()]:
        match piece:
            case Content():
                content += piece.text
            case CallStart():
                calls.append(Call(piece.name))
            case ArgumentsPiece():
                calls[piece.index].arguments += piece.text
    return Reading(content, calls, reader.is_complete)


class CallReader:
    """Text in as it comes, pieces of content and calls out."""

    def __init__(self, markup: Markup) -> None:
        self._markup, self._begin = markup, markup.begin.strip()
        marks = {self._begin, markup.end.strip(), markup.separator.strip()} - {""}
        self._marks = sorted(marks, key=len)  # where one begins another, the shorter one is there first
        self._read: Callable[[], Iterator[Piece]] = self._content if self._begin else self._opening
        self._held = ""  # text in doubt
        self._num_started = self._num_closed = 0
        self._value = _Value()

    @property
    def is_complete(self) -> bool:
        return 0 < self._num_started == self._num_closed

    def feed(self, text: str) -> Iterator[Piece]:
        self._held += text
        reading = None
        while reading != self._read:  # until nothing more can be told
            reading = self._read
            yield from reading()

    def finish(self) -> Iterator[Piece]:
        """What was held: the text ended in doubt. Of markup that was cut nothing is told."""
        held, self._held = self._held, ""
        is_markup = self._read == self._between and not held.lstrip().startswith("{")
        if held and not is_markup:
            yield Content(held)

    def _content(self) -> Iterator[Piece]:
        """Spaces before a call belong to its markup."""
        at = self._held.find(self._begin) if self._begin else -1
        if at < 0:
            at = len(self._held) - _overlap(self._held, self._begin)
        else:
            self._read = self._opening
        yield from self._told(len(self._held[:at].rstrip()) if self._begin else at)

    def _opening(self) -> Iterator[Piece]:
        """At a call's beginning, if it is one."""
        start = self._held.find(self._begin) + len(self._begin)
        if _may_begin_call(self._held, start, self._markup.arguments):
            yield from self._start_call(start)
        else:
            self._read = self._content
            yield from self._told(start)

    def _between(self) -> Iterator[Piece]:
        """After a call."""
        while mark := next((mark for mark in self._marks if self._held.lstrip().startswith(mark)), ""):
            self._held = self._held.lstrip()[len(mark) :]
        rest = self._held.lstrip()
        if any(mark.startswith(rest) for mark in self._marks):
            return
        if _may_begin_call(self._held, 0, self._markup.arguments):
            yield from self._start_call(0)
        else:
            self._read = self._content

    def _start_call(self, start: int) -> Iterator[Piece]:
        found = _whole_header(self._markup.arguments).match(self._held, start)
        if found:
            yield CallStart(self._num_started, found[1])
            self._num_started += 1
            self._held = self._held[found.end() :]
            self._read, self._value = self._arguments, _Value()

    def _arguments(self) -> Iterator[Piece]:
        end = self._value.end(self._held)
        piece = self._held[:end]
        if end is None:
            self._held = ""
        else:
            self._held = self._held[end:]
            self._read, self._value = self._remainder, _Value(depth=1)
        if piece:
            yield ArgumentsPiece(self._num_started - 1, piece)

    def _remainder(self) -> Iterator[Piece]:
        """Of the object around name and arguments; what else it has is no business of clients."""
        end = self._value.end(self._held)
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            self._num_closed += 1
            self._read = self._between
        yield from ()

    def _told(self, num_characters: int) -> Iterator[Piece]:
        text, self._held = self._held[:num_characters], self._held[num_characters:]
        if text:
            yield Content(text)


@dataclass(slots=True)
class _Value:
    """Looks for the end of a JSON object that comes in pieces."""

    depth: int = 0
    is_string: bool = False
    is_escaped: bool = False

    def end(self, text: str) -> int | None:
        """Where in this piece the object is over."""
        at = 0
        if self.is_escaped and text:
            self.is_escaped, at = False, 1
        while found := _NOTABLE.search(text, at):
            at = found.end()
            match found[0]:
                case '"':
                    self.is_string = not self.is_string
                case "\\" if self.is_string:
                    self.is_escaped = at == len(text)
                    at += 1
                case "{" if not self.is_string:
                    self.depth += 1
                case "}" if not self.is_string:
                    self.depth -= 1
                    if not self.depth:
                        return at
        return None


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of the text that the mark begins with; fewer than all of it."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(mark[:size])), 0)


def _may_begin_call(text: str, start: int, arguments: str) -> bool:
    """Whether a call's name and the brace of its arguments are there, or could still come."""
    return bool(_header_so_far(arguments).match(text, start))


@lru_cache(8)
def _whole_header(arguments: str) -> re.Pattern[str]:
    """{"name": "…", "arguments":   before the brace of the arguments."""
    return re.compile("".join(_header(arguments)) + r"(?=\{)")


@lru_cache(8)
def _header_so_far(arguments: str) -> re.Pattern[str]:
    """Matches every beginning of a header, whatever follows a whole one."""
    pattern = r"(?:\{|\Z)"
    for part in reversed(_header(arguments)):
        pattern = rf"(?:\Z|{part}{pattern})"
    return re.compile(pattern)


def _header(arguments: str) -> list[str]:
    """Parts of a pattern, each of one character or of a run of one kind."""
    name, colon = [*map(re.escape, '"name"')], [_SPACE, ":", _SPACE]
    before = [_SPACE, r"\{", _SPACE, *name, *colon, '"', f"({FUNCTION_NAME})", '"', _SPACE, ",", _SPACE]
    return [*before, *map(re.escape, json.dumps(arguments)), *colon]
