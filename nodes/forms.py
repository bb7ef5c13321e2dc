"""The form that an answer must have, as a grammar: JSON that satisfies a schema, calls of functions, or free text.

A grammar is one text in llguidance's dialect of Lark, with schemas in it. The tail lets no token come that breaks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nodes.keywords import SchemaError
from nodes.markups import Markup
from nodes.schemas import json_grammar, kept_schema
from nodes.tools import FormError, Function, Tools

_ANY_OBJECT = {"type": "object"}
Split = Callable[[str], list[str | int]]  # a mark to its text and its special tokens


@dataclass(frozen=True, slots=True)
class Form:
    """What a request asks for; nothing, by default."""

    schema: Any = None  # of the answer's JSON, as a grammar takes it (schemas.py); None: free text
    schema_param: str = ""  # where the request has it
    tools: Tools | None = None

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Form:
        """Raises FormError."""
        schema, param = _response_format(fields.get("response_format"))
        return cls(schema, param, Tools.read(fields))

    def parts(self) -> Iterator[tuple[str, str]]:
        """Each schema by itself, to be checked: (where the request has it, a grammar). Raises FormError."""
        if self.schema is not None:
            yield self.schema_param, f"start: {_json(self.schema, self.schema_param)}"
        for function in self.tools.functions if self.tools else ():
            yield function.param, f"start: {_json(function.schema, function.param)}"

    def grammar(self, markup: Markup, split: Split) -> str | None:
        """None where any text will do. Raises FormError."""
        if self.tools:
            return _of_calls(self, self.tools, markup, split)
        return None if self.schema is None else f"start: {_json(self.schema, self.schema_param)}\n"


FREE = Form()


def _response_format(value: Any) -> tuple[Any, str]:
    """(schema, where it is)"""
    kind = value.get("type") if isinstance(value, dict) else None
    if value is None or kind == "text":
        return None, ""
    if kind == "json_object":
        return _ANY_OBJECT, "response_format"
    given = value.get("json_schema") if kind == "json_schema" else None
    if not isinstance(given, dict):
        raise FormError('must be of type "text", "json_object" or "json_schema"', "response_format")
    param = "response_format.json_schema.schema"
    try:
        return kept_schema(given.get("schema", _ANY_OBJECT)), param
    except SchemaError as error:
        raise FormError(str(error), param + error.place) from None


def _json(schema: Any, param: str) -> str:
    try:
        return json_grammar(schema)
    except SchemaError as error:
        raise FormError(str(error), param + error.place) from None


def _of_calls(form: Form, tools: Tools, markup: Markup, split: Split) -> str:
    """Calls, and unless they must be, other text before or instead of them."""
    if form.schema is not None and not markup.begin and not tools.must_call:
        message = "can't ask for JSON while tools may be called: this model writes its calls as JSON, too"
        raise FormError(message, "response_format")
    opening, *rest = split(markup.begin) or [""]
    calls = f"{_parts(rest)} {_several(tools, markup, split)} {_parts(split(markup.end))}"
    rules = [f"call: {' | '.join(f'call_{number}' for number in range(len(tools.functions)))}"]
    rules += [f"call_{number}: {_call(one, markup)}" for number, one in enumerate(tools.functions)]
    if tools.must_call:
        return _lines(f"start: {_parts([opening])} {calls}", *rules)
    if form.schema is not None:
        body = f"body: {_json(form.schema, form.schema_param)}"
        return _lines(f"start: body | {_parts([opening])} {calls}", body, *rules)
    return _lines(*_after_text(opening, calls), *rules)


def _several(tools: Tools, markup: Markup, split: Split) -> str:
    more = markup.most_calls - 1 if tools.may_call_several else 0
    return f"call ({_parts(split(markup.between))} call){{0,{more}}}" if more else "call"


def _after_text(opening: str | int, calls: str) -> list[str]:
    """Text that goes on until calls begin, if they do. Where they have no beginning the first brace is one."""
    if isinstance(opening, int):
        return [f"start: TEXT? ({_parts([opening])} {calls})?", "TEXT: /(?s:.+)/"]
    if not opening:
        return [f"start: TEXT? | {calls}", r"TEXT: /[^{ \t\r\n](?s:.*)/"]
    sign = opening.rstrip()
    started = f"opening {_parts([opening[len(sign) :]])} {calls}"
    return [f"start: text | {started}", "text: TEXT", f"opening[lazy]: TEXT {_quoted(sign)}", "TEXT: /(?s:.*)/"]


def _call(function: Function, markup: Markup) -> str:
    return f'{_quoted(markup.before_arguments(function.name))} {_json(function.schema, function.param)} "}}"'


def _parts(parts: list[str | int]) -> str:
    """Of a mark. A special token is no text and has an expression of its own."""
    return " ".join(f"<[{part}]>" if isinstance(part, int) else _quoted(part) for part in parts if part != "")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _lines(*rules: str) -> str:
    return "".join(f"{rule}\n" for rule in rules)
