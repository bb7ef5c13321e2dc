from __future__ import annotations

from typing import Any

import pytest

from nodes.tools import FormError, Tools

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, parameters: Any = CITY) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


BOTH = [tool("weather"), tool("time")]


def read(**fields: Any) -> Tools:
    tools = Tools.read(fields)
    assert tools
    return tools


def callable_names(**fields: Any) -> list[str]:
    return [function.name for function in read(**fields).functions]


@pytest.mark.parametrize("choice", [None, "auto"])
def test_by_default_functions_may_be_called(choice: Any) -> None:
    tools = read(tools=BOTH, tool_choice=choice)
    assert (tools.must_call, tools.may_call_several) == (False, True)
    assert callable_names(tools=BOTH) == ["weather", "time"]


def test_one_must_be_called_where_that_is_required() -> None:
    assert read(tools=BOTH, tool_choice="required").must_call


def test_a_named_function_must_be_called_and_no_other_though_all_are_told() -> None:
    tools = read(tools=BOTH, tool_choice={"type": "function", "function": {"name": "time"}})
    assert tools.must_call
    assert not tools.may_call_several
    assert [function.name for function in tools.functions] == ["time"]
    assert list(tools.given) == BOTH


@pytest.mark.parametrize("fields", [{}, {"tools": None}, {"tools": []}, {"tools": BOTH, "tool_choice": "none"}])
def test_where_nothing_may_be_called_there_are_no_tools(fields: dict[str, Any]) -> None:
    assert Tools.read(fields) is None


def test_only_one_call_where_they_arent_to_be_parallel() -> None:
    assert not read(tools=BOTH, parallel_tool_calls=False).may_call_several
    assert read(tools=BOTH, parallel_tool_calls=None).may_call_several


def test_a_function_without_parameters_takes_none() -> None:
    (function,) = read(tools=[{"type": "function", "function": {"name": "now"}}]).functions
    assert function.schema == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [tool(f"f{number}") for number in range(129)]}, "tools"),
        ({"tools": [tool("a"), tool("a")]}, "tools"),
        ({"tools": [7]}, "tools[0]"),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0]"),
        ({"tools": [tool("no spaces")]}, "tools[0].function.name"),
        ({"tools": [tool("a"), tool("b", {"type": "string"})]}, "tools[1].function.parameters"),
        ({"tools": [tool("a", {"properties": {"x": {"not": {}}}})]}, "tools[0].function.parameters.properties.x.not"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": BOTH, "tool_choice": "any"}, "tool_choice"),
        ({"tools": BOTH, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": BOTH, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
        ({"tools": BOTH, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FormError) as error:
        Tools.read(fields)
    assert error.value.param == param
    assert str(error.value).startswith(param)
