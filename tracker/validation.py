"""The body of a request, read and checked: its first fault is one ApiError that names the parameter to mend.

The words are pydantic's where they are about values, and ours where they would be about our classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from tracker.errors import ApiError
from tracker.parameters import shown

Asked = TypeVar("Asked")

_WORDS = {
    "missing": "has to be given",
    "extra_forbidden": "is unknown",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
}
_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


def json_object(body: bytes) -> dict[str, Any]:
    """Raises ApiError 400."""
    try:
        fields = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body of your request is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "The body of your request must be a JSON object.", code="invalid_json")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


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
