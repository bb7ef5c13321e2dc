"""JSON Schemas as a grammar takes them: what can't be kept is refused by name, what says nothing is left out.

The library that makes grammars passes over keywords that it has never heard of, as the standard allows. A schema with a
word it doesn't know would then be kept only in part, and nobody would notice: so every keyword is looked at here, its
value in keywords.py, and where references lead in references.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nodes.keywords import SchemaError, check_bounds, check_multiples, checked, pattern_size
from nodes.patterns import MAX_SIZE
from nodes.references import Path, check_references, place_of

MAX_MEETING = 8  # patterns and formats that may hold of one value: with each more the library takes five times as long
MAX_DEPTH = 40  # of schemas within schemas; the library parses no deeper than this with everything around them

_ONE = frozenset({"additionalItems", "additionalProperties"})  # keywords whose value is a schema
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})  # a list of schemas
_NAMED = frozenset({"$defs", "definitions", "patternProperties", "properties"})  # an object of schemas
_PLAIN = frozenset(
    {
        *("$ref", "$schema", "const", "enum", "format", "type"),
        *("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"),
        *("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties", "pattern", "required"),
    }
)
_SAYS_NOTHING = frozenset(
    {
        *("$anchor", "$comment", "$id", "default", "deprecated", "description", "discriminator"),
        *("example", "examples", "id", "readOnly", "title", "writeOnly"),
    }
)
_JOINING, _ASIDE = frozenset({"$ref", "anyOf", "oneOf"}), frozenset({"$defs", "$schema", "definitions"})
_CHANGES_NOTHING = {"nullable": False, "uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
_HINTS = {"nullable": '; write {"type": [..., "null"]}', "unevaluatedProperties": "; write additionalProperties"}
# As models have read most JSON; a small one that may write spaces as it likes doesn't always stop.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def kept_schema(schema: Any) -> Any:
    """The same without what says nothing. Raises SchemaError naming what can't be kept."""
    try:
        return _Schema(schema).kept_root()
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


@dataclass(frozen=True, slots=True)
class _Schema:
    root: Any
    references: dict[Path, str] = field(default_factory=dict)  # of each schema the one that it refers to, if any
    multiples: list[tuple[float, str]] = field(default_factory=list)  # all multipleOf, with their places
    patterns: list[int] = field(default_factory=list)  # their sizes
    formats: list[str] = field(default_factory=list)
    joins: list[str] = field(default_factory=list)  # places of schemas that hold of a value besides another

    def kept_root(self) -> Any:
        kept = self.kept(self.root, (), MAX_DEPTH)
        check_references(self.references)
        check_multiples(self.multiples)
        if min(len(self.patterns) + len(self.formats), len(self.joins)) > MAX_MEETING:
            message = f"makes the form too complex: more than {MAX_MEETING} patterns or formats may hold of one value"
            raise SchemaError(message, self.joins[MAX_MEETING])
        return kept

    def kept(self, schema: Any, path: Path, depth: int) -> Any:
        place = place_of(path)
        if not isinstance(schema, bool | dict):
            raise SchemaError("must be a schema: an object, true or false", place)
        if not depth:
            raise SchemaError(f"lies more than {MAX_DEPTH} schemas deep", place)
        self.references[path] = ""
        if isinstance(schema, bool):
            return schema
        kept = dict(self._kept_keywords(schema, path, depth - 1))
        check_bounds(kept, place)
        if _JOINING & kept.keys() and kept.keys() - _JOINING - _ASIDE:
            self.joins.append(place)
        self.joins.extend(f"{place}.allOf[{number}]" for number in range(len(kept.get("allOf", ()))))
        return kept

    def _kept_keywords(self, schema: dict[str, Any], path: Path, depth: int) -> Iterator[tuple[str, Any]]:
        for name, value in schema.items():
            inner = (*path, name)
            place = place_of(inner)
            if name in _PLAIN:
                yield from self._plain(name, value, path, schema)
            elif name in _ONE or (name == "items" and not isinstance(value, list)):
                yield name, self.kept(value, inner, depth)
            elif name in _MANY or name == "items":
                choices = enumerate(_list(value, place))
                is_one_of_any = name == "oneOf" and "anyOf" not in schema and self._exclude_each_other(value)
                listed = [self.kept(one, (*inner, number), depth) for number, one in choices]
                yield "anyOf" if is_one_of_any else name, listed
            elif name in _NAMED:
                if name == "patternProperties":
                    for pattern in _object(value, place):
                        self._count_pattern(pattern, f"{place}.{pattern}")
                yield name, {key: self.kept(one, (*inner, key), depth) for key, one in _object(value, place).items()}
            elif name not in _SAYS_NOTHING and not name.startswith("x-") and _CHANGES_NOTHING.get(name) is not value:
                raise SchemaError(f"isn't supported{_HINTS.get(name, '; leave it out')}", place)

    def _plain(self, name: str, value: Any, path: Path, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        place = place_of((*path, name))
        if name == "format" and isinstance(value, str) and not _may_be_text(schema):
            return  # what programs write beside numbers, such as int32, says nothing of text
        kept = checked(name, value, place)
        if name == "$ref":
            self.references[path] = kept
        elif name == "format":
            self.formats.append(kept)
        elif name == "multipleOf":
            self.multiples.append((kept, place))
        elif name == "pattern":
            self._count_pattern(kept, place)
        yield name, kept

    def _count_pattern(self, pattern: str, place: str) -> None:
        self.patterns.append(pattern_size(pattern, place))
        if self.patterns[-1] > MAX_SIZE:
            raise SchemaError(f"is too complex: with its repetitions written out it has over {MAX_SIZE} signs", place)
        if sum(self.patterns) > MAX_SIZE:
            raise SchemaError(f"makes the form too complex: all patterns together have over {MAX_SIZE} signs", place)

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


def _may_be_text(schema: dict[str, Any]) -> bool:
    """Whether its type, if it has one, allows strings."""
    kind = schema.get("type", "string")
    return "string" in kind if isinstance(kind, list) else kind == "string"


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
