"""The body of a request, read and checked: its first fault is one ApiError that names the parameter to mend.

The words are pydantic's where they are about values, and ours where they would be about our classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from tracker.errors import ApiError
from tracker.fields import NO_TEXT
from tracker.parameters import shown

Asked = TypeVar("Asked")

MAX_DIGITS = 1000  # of a whole number: reading longer ones takes time, and Python itself reads no more than 4300

_WORDS = {
    "missing": "has to be given",
    "extra_forbidden": "is unknown",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "string_unicode": NO_TEXT,
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
}
_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


def json_object(body: bytes) -> dict[str, Any]:
    """Raises ApiError 400. What is said twice is refused: which of the two was meant nobody knows."""
    repeats: dict[int, tuple[dict[str, Any], str]] = {}  # by id: objects that say something twice, and what

    def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            repeats[id(found)] = found, next(name for name in names if names.count(name) > 1)
        return found

    try:
        fields = json.loads(
            body, parse_constant=_refuse_constant, parse_int=_whole_number, object_pairs_hook=unrepeated
        )
        place = _place_of(fields, repeats) if repeats else None
    except RecursionError:
        raise _no_json("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _no_json(f"its byte {error.start} is no {error.encoding.upper()}") from None
    except ValueError as error:
        raise _no_json(str(error)) from None
    if place:
        param = _param(place)
        raise ApiError(400, f"{param}: is given more than once.", code="invalid_value", param=param)
    if not isinstance(fields, dict):
        raise ApiError(400, "The body of your request must be a JSON object.", code="invalid_json")
    return fields


def _place_of(value: Any, repeats: Mapping[int, tuple[Any, str]]) -> tuple[int | str, ...] | None:
    """Where the first of these is."""
    if id(value) in repeats:
        return (repeats[id(value)][1],)
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if (inner := _place_of(part, repeats)) is not None:
            return (name, *inner)
    return None


def _no_json(why: str) -> ApiError:
    return ApiError(400, f"The body of your request is not valid JSON: {why}.", code="invalid_json")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _whole_number(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(text)


def checked(validate: Callable[[Any], Asked], fields: dict[str, Any]) -> Asked:
    """Raises ApiError 400."""
    try:
        return validate(fields)
    except ValidationError as error:
        found = error.errors()[0]
    kind, param, message = found["type"], _param(found["loc"]), _message(found)
    if not found["loc"]:  # a rule over several fields says in front which one is to blame
        param, _, message = message.partition(": ")
    raise ApiError(400, f"{param}: {message}.", code=_CODES.get(kind, "invalid_value"), param=param)


def _message(found: Mapping[str, Any]) -> str:
    bounds = found.get("ctx", {})
    if "max_length" in bounds:
        return f"is longer than {bounds['max_length']}"
    if "min_length" in bounds:
        return "must not be empty" if bounds["min_length"] == 1 else f"is shorter than {bounds['min_length']}"
    message = str(found["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return _WORDS.get(found["type"], message)


def _param(location: tuple[int | str, ...]) -> str:
    """messages[0].content"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shown(part)}" for part in location).removeprefix(".")
