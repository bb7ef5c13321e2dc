"""JSON Schemas as a grammar takes them: what can't be kept is refused by name, what says nothing is left out.

The library that makes grammars passes over keywords that it has never heard of, as the standard allows. A schema with a
word it doesn't know would then be kept only in part, and nobody would notice: so every keyword is looked at here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 40  # of schemas within schemas; the library parses no deeper than this with everything around them

_ONE = frozenset({"additionalItems", "additionalProperties"})  # keywords whose value is a schema
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})  # a list of schemas
_NAMED = frozenset({"$defs", "definitions", "patternProperties", "properties"})  # an object of schemas
_PLAIN = frozenset(
    {
        *("$anchor", "$id", "$ref", "$schema", "id", "const", "enum", "format", "type"),
        *("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"),
        *("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties", "pattern", "required"),
    }
)
_SAYS_NOTHING = frozenset(
    {
        *("$comment", "default", "deprecated", "description", "discriminator", "example", "examples", "readOnly"),
        *("title", "writeOnly"),
    }
)
_CHANGES_NOTHING = {"nullable": False, "uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
_HINTS = {"nullable": '; write {"type": [..., "null"]}', "unevaluatedProperties": "; write additionalProperties"}
# As models have read most JSON; a small one that may write spaces as it likes doesn't always stop.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class SchemaError(ValueError):
    """A schema that can't be kept to: the user's to mend. `place`: where in it, such as `.properties.age`."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


def kept_schema(schema: Any) -> Any:
    """The same without what says nothing. Raises SchemaError naming what can't be kept."""
    try:
        return _Schema(schema).kept(schema, "", MAX_DEPTH)
    except RecursionError:
        raise SchemaError("is nested too deeply") from None


def kept_object(schema: Any) -> Any:
    """Of a schema that only objects may satisfy."""
    kept = kept_schema(schema)
    if not isinstance(kept, dict) or kept.get("type", "object") != "object":
        raise SchemaError('must be a schema of type "object"')
    return kept if "type" in kept or "$ref" in kept else {"type": "object"} | kept


def json_grammar(kept: Any) -> str:
    """A JSON text that satisfies it, as an expression of a Lark grammar. Raises SchemaError."""
    fields = kept if isinstance(kept, dict) else {"allOf": [kept]}
    try:
        text = json.dumps({"x-guidance": _SPACING} | fields, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except RecursionError:
        raise SchemaError("is nested too deeply") from None
    except UnicodeEncodeError:
        raise SchemaError("holds half a surrogate pair, which no text can") from None
    return f"%json {text}"


def reason_of(error: str) -> str:
    """What the library says of a schema, in words of who wrote it."""
    if "oneOf constraints" in error:
        return "its oneOf has choices that may hold at once, which can't be ruled out; write anyOf"
    return error.removeprefix("failed to compile JSON schema: ").replace("Unimplemented keys", "unsupported keywords")


@dataclass(frozen=True, slots=True)
class _Schema:
    root: Any

    def kept(self, schema: Any, place: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise SchemaError("must be a schema: an object, true or false", place)
        if not depth:
            raise SchemaError(f"lies more than {MAX_DEPTH} schemas deep", place)
        return dict(self._kept_keywords(schema, place, depth - 1))

    def _kept_keywords(self, schema: dict[str, Any], place: str, depth: int) -> Iterator[tuple[str, Any]]:
        for name, value in schema.items():
            inner = f"{place}.{name}"
            if name in _PLAIN:
                yield name, value
            elif name in _ONE or (name == "items" and not isinstance(value, list)):
                yield name, self.kept(value, inner, depth)
            elif name in _MANY or name == "items":
                choices = enumerate(_list(value, inner))
                is_one_of_any = name == "oneOf" and "anyOf" not in schema and self._exclude_each_other(value)
                listed = [self.kept(one, f"{inner}[{number}]", depth) for number, one in choices]
                yield "anyOf" if is_one_of_any else name, listed
            elif name in _NAMED:
                yield name, {key: self.kept(one, f"{inner}.{key}", depth) for key, one in _object(value, inner).items()}
            elif name not in _SAYS_NOTHING and not name.startswith("x-") and _CHANGES_NOTHING.get(name) is not value:
                raise SchemaError(f"isn't supported{_HINTS.get(name, '; leave it out')}", inner)

    def _exclude_each_other(self, choices: list[Any]) -> bool:
        """Whether each is of objects with a property that tells it from all others, as tagged unions are."""
        objects = [self._referred(one) for one in choices]
        if not objects or not all(one.get("type") == "object" and _has_properties(one) for one in objects):
            return False
        shared = set.intersection(*({*map(str, one.get("required", ()))} for one in objects))
        return any(_differ([_values(one["properties"].get(name)) for one in objects]) for name in shared)

    def _referred(self, schema: Any) -> dict[str, Any]:
        """The schema itself, or what it refers to; empty where that isn't plain to see."""
        if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
            schema = self.root if reference.startswith("#/") else {}
            for part in reference.split("/")[1:]:
                schema = schema.get(part) if isinstance(schema, dict) else {}
        return schema if isinstance(schema, dict) and "$ref" not in schema else {}


def _has_properties(schema: dict[str, Any]) -> bool:
    return isinstance(schema.get("properties"), dict) and isinstance(schema.get("required"), list)


def _values(schema: Any) -> list[Any]:
    """That a property may have, where they are listed."""
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else []


def _differ(lists: list[list[Any]]) -> bool:
    """Whether each has values, and none has one of another's."""
    before: list[Any] = []
    for values in lists:
        if not values or any(value in before for value in values):
            return False
        before += values
    return True


def _list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError("must be a list of schemas", place)
    return value


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SchemaError("must be an object whose values are schemas", place)
    return value
