from __future__ import annotations

import json
from typing import Any

import pytest

from tracker.errors import ApiError
from tracker.openai import ChatRequest, read_chat

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION: dict[str, Any] = {"name": "weather", "description": "How warm it is.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
SCHEMA_PARAM = "response_format.json_schema.schema"
WEATHER = {"type": "function", "function": {"name": "weather"}}


def chat(**fields: Any) -> ChatRequest:
    messages = [{"role": "user", "content": "Hi"}]
    return read_chat(json.dumps({"model": "tiny", "messages": messages} | fields).encode())


def form(**fields: Any) -> dict[str, Any]:
    """What goes to the head beside what always goes."""
    return {name: value for name, value in chat(**fields).for_head().items() if name not in chat().for_head()}


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        chat(**fields)
    assert error.value.status == 400
    json.dumps(error.value.as_openai(), ensure_ascii=False).encode()
    return error.value


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": FUNCTION | function}


def format_of(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA} | fields}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": []},
        {"tools": None, "tool_choice": None, "parallel_tool_calls": None, "response_format": None},
        {"tool_choice": "none"},
        {"tool_choice": "auto", "parallel_tool_calls": False},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text", "json_schema": None}},
    ],
)
def test_what_asks_for_nothing_goes_to_no_head(fields: dict[str, Any]) -> None:
    assert form(**fields) == {}


def test_tools_and_how_they_may_be_called_go_to_the_head() -> None:
    assert form(tools=[TOOL]) == {"tools": [TOOL]}
    assert form(tools=[TOOL], parallel_tool_calls=True) == {"tools": [TOOL]}
    for choice in ("none", "auto", "required", WEATHER):
        asked = form(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
        assert asked == {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}


@pytest.mark.parametrize("parameters", [None, {}])
def test_a_function_without_parameters_takes_none(parameters: Any) -> None:
    [told] = form(tools=[{"type": "function", "function": {"name": "now", "parameters": parameters}}])["tools"]
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    assert told["function"] == {"name": "now", "parameters": none}


@pytest.mark.parametrize("strict", [True, False, None])
def test_arguments_satisfy_their_schema_whether_strict_or_not(strict: Any) -> None:
    assert form(tools=[tool(strict=strict)]) == {"tools": [TOOL]}
    asked = form(response_format=format_of(strict=strict, description="About the weather"))
    assert asked == {"response_format": format_of()}


def test_json_may_be_asked_for_without_a_schema() -> None:
    assert form(response_format={"type": "json_object"}) == {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("weather", "tools"),
        ({}, "tools"),
        ([7], "tools[0]"),
        ([{}], "tools[0].type"),
        ([TOOL | {"type": "custom"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([TOOL, {"type": "function", "function": {}}], "tools[1].function.name"),
        ([tool(name="get weather")], "tools[0].function.name"),
        ([tool(name="")], "tools[0].function.name"),
        ([tool(name="w" * 65)], "tools[0].function.name"),
        ([tool(name="weather\n")], "tools[0].function.name"),
        ([tool(description=7)], "tools[0].function.description"),
        ([tool(description="\ud83d")], "tools[0].function.description"),
        ([tool(strict="yes")], "tools[0].function.strict"),
        ([tool(parameters=[])], "tools[0].function.parameters"),
        ([tool(parameters={"type": "string"})], "tools[0].function.parameters"),
        ([tool(parameters={"properties": {}})], "tools[0].function.parameters"),
        ([tool(parameters=SCHEMA | {"title": "\ud83d"})], "tools[0].function.parameters"),
        ([tool(parameters=SCHEMA | {"title": "x" * 70_000})], "tools[0].function.parameters"),
        ([tool(examples=[])], "tools[0].function.examples"),
        ([TOOL, TOOL], "tools"),
        ([tool(name=f"f{number}") for number in range(129)], "tools"),
        ([tool(name=f"f{number}", description="x" * 60_000) for number in range(5)], "tools"),
    ],
)
def test_tools_that_are_none_are_refused_by_name(tools: Any, param: str) -> None:
    assert refused(tools=tools).param == param


@pytest.mark.parametrize(
    "choice",
    [
        "weather",
        "",
        True,
        {},
        {"type": "function"},
        {"type": "function", "name": "weather"},
        {"type": "function", "function": {"name": 7}},
        {"type": "function", "function": {"name": "\ud83d"}},
        {"type": "function", "function": {"name": "time"}},
        WEATHER | {"mode": "auto"},
        {"type": "custom", "custom": {"name": "weather"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [WEATHER]}},
    ],
)
def test_a_choice_is_one_of_the_words_or_a_function_that_is_there(choice: Any) -> None:
    assert refused(tools=[TOOL], tool_choice=choice).param == "tool_choice"


def test_only_tools_that_are_there_can_be_required() -> None:
    assert refused(tool_choice="required").param == "tool_choice"
    assert refused(tools=[], tool_choice=WEATHER).param == "tool_choice"
    assert refused(tools=[TOOL], parallel_tool_calls="no").param == "parallel_tool_calls"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("json", "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format"),
        ({"type": "json_object", "json_schema": {"name": "a", "schema": {}}}, "response_format"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, SCHEMA_PARAM),
        (format_of(name=None), "response_format.json_schema.name"),
        (format_of(name="an answer"), "response_format.json_schema.name"),
        (format_of(schema=[]), SCHEMA_PARAM),
        (format_of(schema={"title": "\ud83d"}), SCHEMA_PARAM),
        (format_of(schema={"title": "x" * 70_000}), SCHEMA_PARAM),
        (format_of(strict=1), "response_format.json_schema.strict"),
        (format_of(other=1), "response_format.json_schema.other"),
    ],
)
def test_a_format_that_is_none_is_refused_by_name(value: Any, param: str) -> None:
    assert refused(response_format=value).param == param


def test_schemas_with_what_can_not_be_sent_on_are_refused() -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [tool(parameters=SCHEMA | {"const": 7})],
    }
    asked |= {"response_format": format_of(schema={"const": 7})}
    for value in ("1e999", "[" * 200 + "]" * 200):
        for name, param in (("tools", "tools[0].function.parameters"), ("response_format", SCHEMA_PARAM)):
            body = json.dumps({key: asked[key] for key in ("model", "messages", name)}).replace("7", value)
            with pytest.raises(ApiError) as error:
                read_chat(body.encode())
            assert (error.value.status, error.value.param) == (400, param)


@pytest.mark.parametrize(("name", "value"), [("functions", [FUNCTION]), ("function_call", {"name": "weather"})])
def test_the_older_names_are_refused_with_the_newer_ones(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert error.param == name
    assert "use tool" in error.message
