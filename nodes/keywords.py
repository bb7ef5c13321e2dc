"""Values of a schema's keywords: of the right type, and of a size that a grammar holds exactly and in good time.

The library that makes grammars counts in 64-bit floats and integers, rounds what doesn't fit, and has been seen to end
the whole process over numbers at their borders. So nothing reaches it that it can't hold, and each refusal names the
keyword.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from nodes.patterns import PatternError, size_of

MAX_NUMBER = 2**53 - 1  # in either direction: whole numbers beyond have neighbours that no float tells from them
MIN_FRACTION = 1e-15  # of what isn't 0
MAX_COUNT = 65_536  # of characters, items or properties
MAX_MULTIPLE = 10**6  # of multipleOf, in units of its last digit
MAX_REMAINDERS = 300  # that a number may have when divided by a multipleOf, but for those its last digits tell

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})


class SchemaError(ValueError):
    """A schema that can't be kept to: the user's to mend. `place`: where in it, such as `.properties.age`."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


def checked(name: str, value: Any, place: str) -> Any:
    """The value of a keyword, in the library's way of writing it. Raises SchemaError."""
    return _CHECKS[name](value, place) if name in _CHECKS else value


def check_bounds(schema: Mapping[str, Any], place: str) -> None:
    """Of one schema whose values are checked. Raises SchemaError where nothing lies between them."""
    for least, most in _PAIRS:
        if least in schema and most in schema and schema[least] > schema[most]:
            raise SchemaError(f"is below {least}: nothing lies between them", f"{place}.{most}")
    for least, most in _OPEN_PAIRS:
        if least in schema and most in schema and schema[least] >= schema[most]:
            raise SchemaError(f"isn't above {least}: nothing lies between them", f"{place}.{most}")


def check_multiples(multiples: Iterable[tuple[float, str]]) -> None:
    """All multipleOf of a schema, with their places: any two may come to hold of one number. Raises SchemaError."""
    units, scale = 0, 0
    for value, place in multiples:
        unit, digits = _units(value)
        if not units:
            units, scale = unit, digits
        units, unit = units * 10 ** max(digits - scale, 0), unit * 10 ** max(scale - digits, 0)
        scale, most = max(scale, digits), max(units, unit)
        units = math.lcm(units, unit)
        if _remainders(units) > MAX_REMAINDERS or units * most > 2**32 - 1:
            raise SchemaError("makes the form too complex: write a rounder number, or fewer different ones", place)


def pattern_size(pattern: str, place: str) -> int:
    """Raises SchemaError."""
    try:
        return size_of(pattern)
    except PatternError as error:
        raise SchemaError(str(error), place) from None


def _number(value: Any, place: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError("must be a number", place)
    if not -MAX_NUMBER <= value <= MAX_NUMBER:  # nor if it is no number at all
        raise SchemaError(f"can't be held exactly: numbers may lie between -{MAX_NUMBER} and {MAX_NUMBER}", place)
    if value and abs(value) < MIN_FRACTION:
        raise SchemaError(f"can't be held exactly: it is nearer to 0 than {MIN_FRACTION}", place)
    return int(value) if value == int(value) else value


def _count(value: Any, place: str) -> int:
    number = _number(value, place)
    if not isinstance(number, int) or not 0 <= number <= MAX_COUNT:
        raise SchemaError(f"must be a whole number between 0 and {MAX_COUNT}", place)
    return number


def _multiple(value: Any, place: str) -> Any:
    number = _number(value, place)
    if number <= 0:
        raise SchemaError("must be greater than 0", place)
    units, digits = _units(number)
    if Decimal(units).scaleb(-digits) != Decimal(repr(number)):
        raise SchemaError("can't be held exactly: write a number with fewer digits", place)
    if units > MAX_MULTIPLE:
        raise SchemaError("has too many digits: write a rounder number", place)
    return number


def _units(number: float) -> tuple[int, int]:
    """(as many units of its last digit, digits after the point), found in the library's way, which may miss."""
    value, digits = float(number), 0
    while value % 1:
        value, digits = value * 10, digits + 1
    return int(value), digits


def _remainders(units: int) -> int:
    """Of numbers read digit by digit; twos and fives are a matter of the last digits."""
    for factor in (2, 5):
        while units % factor == 0:
            units //= factor
    return units


def _exact(value: Any, place: str) -> Any:
    """Any JSON, its numbers as they can be held."""
    if isinstance(value, list):
        return [_exact(one, f"{place}[{number}]") for number, one in enumerate(value)]
    if isinstance(value, dict):
        return {key: _exact(one, f"{place}.{key}") for key, one in value.items()}
    return value if value is None or isinstance(value, bool | str) else _number(value, place)


def _choices(value: Any, place: str) -> Any:
    if not isinstance(value, list) or not value:
        raise SchemaError("must be a list of at least one value", place)
    return _exact(value, place)


def _type(value: Any, place: str) -> Any:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name in TYPES for name in names):
        raise SchemaError(f"must be one or several of {', '.join(sorted(TYPES))}", place)
    return value


def _required(value: Any, place: str) -> Any:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SchemaError("must be a list of names", place)
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise SchemaError("must be a string", place)
    return value


def _format(value: Any, place: str) -> str:
    if _text(value, place) not in FORMATS:
        raise SchemaError(f"isn't a format that can be kept; those are {', '.join(sorted(FORMATS))}", place)
    return str(value)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _count),
    **dict.fromkeys(("pattern", "$ref", "$schema"), _text),
    **{"multipleOf": _multiple, "const": _exact, "enum": _choices, "type": _type, "format": _format},
    "required": _required,
}
_PAIRS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
_OPEN_PAIRS = (
    ("exclusiveMinimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)
