"""The functions that a chat may call, and whether it must, as its request says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from nodes.keywords import SchemaError
from nodes.schemas import kept_object

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


class FormError(ValueError):
    """What is asked of the answer's form can't be had: the user's to mend."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(f"{param} {message}")
        self.param = param


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    schema: Any  # that its arguments satisfy, as a grammar takes it (schemas.py)
    param: str  # where the request has it


@dataclass(frozen=True, slots=True)
class Tools:
    given: tuple[Mapping[str, Any], ...]  # as the request has them, for the model to read
    functions: tuple[Function, ...]  # those that may be called
    must_call: bool = False
    may_call_several: bool = True

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Tools | None:
        """None where nothing may be called: the model isn't told of functions then either. Raises FormError."""
        given, choice = fields.get("tools"), fields.get("tool_choice")
        if given is None:
            given = []
        if not isinstance(given, list) or len(given) > MAX_TOOLS:
            raise FormError(f"must be a list of at most {MAX_TOOLS} functions", "tools")
        functions = tuple(_function(tool, f"tools[{number}]") for number, tool in enumerate(given))
        if len({function.name for function in functions}) < len(functions):
            raise FormError("names a function twice", "tools")
        if choice in (None, "auto", "none"):
            may_call, must_call = functions if choice != "none" else (), False
        else:
            may_call, must_call = _chosen(choice, functions), True
        is_named = must_call and choice != "required"  # one call is asked for: a small model would find no end of them
        may_call_several = _is_parallel(fields) and not is_named
        return cls(tuple(given), may_call, must_call, may_call_several) if may_call else None


def _function(tool: Any, param: str) -> Function:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict):
        raise FormError('must be an object of type "function"', param)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise FormError("must be 1 to 64 letters, digits, dashes and underscores", f"{param}.function.name")
    param = f"{param}.function.parameters"
    try:
        return Function(name, kept_object(_NO_PARAMETERS if parameters is None else parameters), param)
    except SchemaError as error:
        raise FormError(str(error), param + error.place) from None


def _chosen(choice: Any, functions: tuple[Function, ...]) -> tuple[Function, ...]:
    if choice == "required":
        return functions or _refuse("says that a function must be called, but there are none: give tools")
    named = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(named, dict):
        _refuse('must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}')
    chosen = tuple(function for function in functions if function.name == named.get("name"))
    return chosen or _refuse("names a function that isn't one of tools", ".function.name")


def _refuse(message: str, place: str = "") -> NoReturn:
    raise FormError(message, f"tool_choice{place}")


def _is_parallel(fields: Mapping[str, Any]) -> bool:
    asked = fields.get("parallel_tool_calls")
    if asked is not None and not isinstance(asked, bool):
        raise FormError("must be true or false", "parallel_tool_calls")
    return asked is not False
