"""How a model writes calls of functions: the text around each, learned from its own chat template.

A template that knows calls writes those of earlier turns as the model was trained to write them. So it is asked to
write two that are easily found again, and what stands around them is the markup: no table of model families to keep.
Templates that don't know calls, or don't write them as JSON objects with a name and arguments, get the markup below
and the functions described in words (prompts.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]  # messages and tools

MAX_MARK_CHARS = 100
MAX_CALLS = 32  # in one answer: a small model that has begun to call doesn't always find an end

_TEXT = "\u00a7plain\u00a7"  # an answer without calls
_NAMES = ("first_function", "second_function")
_CALL = r'\{\s*"name":\s*"%s",\s*"(\w+)":\s*\{\s*"place":\s*"Oslo"\s*\}(?:\s*,\s*"id":\s*"[^"]*")?\s*\}'
_TORN = re.compile(r"[<\[][^<>\[\]\s]*\Z")  # at the end of what two texts have in common: the beginning of a mark


@dataclass(frozen=True, slots=True)
class Markup:
    """A call is `{"name": …, arguments: {…}}`. Between two there is the separator, and where it is so the end of the
    one before it and the beginning of the other after it."""

    begin: str  # empty: an answer is calls from its first character, or has none
    end: str
    separator: str
    arguments: str  # what the arguments are called beside the name
    is_around_each: bool = True  # or once around all calls
    most_calls: int = MAX_CALLS

    @property
    def between(self) -> str:
        return f"{self.end}{self.separator}{self.begin}" if self.is_around_each else self.separator

    def as_dict(self) -> dict[str, str]:
        """What the tracker is told, to find the calls again."""
        told = asdict(self)
        return {name: told[name] for name in ("begin", "end", "separator", "arguments")}

    def before_arguments(self, name: str) -> str:
        """What a call has in front of its arguments; after them it has a brace."""
        return f'{{"name": {json.dumps(name)}, "{self.arguments}": '

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Of names and arguments as JSON."""
        texts = (f"{self.before_arguments(name)}{arguments}}}" for name, arguments in calls)
        return self.begin + self.between.join(texts) + self.end


OWN = Markup("<tool_call>\n", "\n</tool_call>", "\n", "arguments")  # what several families are trained to write


def call_message(calls: Sequence[tuple[str, str, Any]]) -> dict[str, Any]:
    """An answer that calls functions, of (id, name, arguments), as chat templates take it."""
    listed = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": "", "tool_calls": listed}


def learned(render: Render, special: Collection[str], call_ids: Sequence[str]) -> Markup | None:
    """The markup of a template, if it has one. `special`: tokens as text. `call_ids`: two that the template may take.

    Raises what the template raises for a single call.
    """
    question = {"role": "user", "content": "Where?"}
    tools = [_tool(name) for name in _NAMES]
    if _NAMES[1] not in render([question], tools):
        return None
    calls = [(call_id, name, {"place": "Oslo"}) for call_id, name in zip(call_ids, _NAMES, strict=True)]
    plain = render([question, {"role": "assistant", "content": _TEXT}], tools)
    single = _around_one(render([question, call_message(calls[:1])], tools), plain, special)
    if single is None:
        return None
    try:
        return _with_several(single, render([question, call_message(calls)], tools))
    except Exception:  # what a template raises may be anything
        return replace(single, most_calls=1)


def _tool(name: str) -> dict[str, Any]:
    place = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    return {"type": "function", "function": {"name": name, "description": "A function.", "parameters": place}}


def _around_one(written: str, plain: str, special: Collection[str]) -> Markup | None:
    """From two conversations that are the same but for their last answers, and perhaps what ends them."""
    tokens = re.compile("|".join(map(re.escape, special)) or r"(?!)")
    start = _num_same(written, plain)
    torn = _TORN.search(written[:start])
    start = torn.start() if torn else start
    start = next((at.start() for at in tokens.finditer(written) if at.start() < start < at.end()), start)
    found = re.compile(_CALL % _NAMES[0]).search(written, start)
    if found is None:
        return None
    begin, after = written[start : found.start()].lstrip(), written[found.end() :]
    end = tokens.split(after[: len(after) - _num_same(reversed(after), reversed(plain))])[0].rstrip()
    return Markup(begin, end, "", found[1]) if len(begin) + len(end) < MAX_MARK_CHARS else None


def _num_same(one: Iterable[str], other: Iterable[str]) -> int:
    """Characters that two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _with_several(single: Markup, written: str) -> Markup:
    first, second = (list(re.finditer(_CALL % name, written)) for name in _NAMES)
    if not first or not second:
        return replace(single, most_calls=1)
    between = written[first[-1].end() : second[-1].start()]
    begin, end = single.begin, single.end
    if between.startswith(end) and between.endswith(begin) and len(between) >= len(begin + end):
        return replace(single, separator=between[len(end) : len(between) - len(begin)])
    return replace(single, separator=between, is_around_each=False)
