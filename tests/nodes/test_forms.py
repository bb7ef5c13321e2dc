from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.forms import FREE, Form
from nodes.tools import FormError
from tests.nodes.templates import BARE, LIST, LIST_TOKENS, PLAIN, tokenizer_with
from tests.nodes.walks import Walker

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
AS_JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"place": {"$ref": "#/$defs/place"}},
                "required": ["place"],
                "additionalProperties": False,
                "$defs": {"place": {"enum": places}},
            },
        },
    }
    for name, places in (("weather", ["Oslo", "Rome"]), ("weather_in_space", ["Mars"]))
]
OSLO = ("weather", '{"place": "Oslo"}')
MARS = ("weather_in_space", '{"place": "Mars"}')


@pytest.fixture(scope="module")
def tagged() -> Walker:
    return Walker(tokenizer_with(PLAIN))


@pytest.fixture(scope="module")
def listed() -> Walker:
    return Walker(tokenizer_with(LIST, LIST_TOKENS))


@pytest.fixture(scope="module")
def bare() -> Walker:
    return Walker(tokenizer_with(BARE))


@pytest.fixture(params=["tagged", "listed", "bare"])
def any_markup(request: pytest.FixtureRequest) -> Walker:
    walker: Walker = request.getfixturevalue(request.param)
    return walker


def grammar(walker: Walker, **fields: Any) -> str:
    text = Form.read(fields).grammar(walker.tokenizer.markup, walker.tokenizer.split)
    assert text
    return text


def calls(walker: Walker, *made: tuple[str, str]) -> str:
    return walker.tokenizer.markup.written(made)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"tools": []}])
def test_where_nothing_is_asked_for_any_text_will_do(tagged: Walker, fields: dict[str, Any]) -> None:
    assert Form.read(fields) == FREE
    assert FREE.grammar(tagged.tokenizer.markup, tagged.tokenizer.split) is None


def test_json_is_an_object(tagged: Walker) -> None:
    form = grammar(tagged, response_format={"type": "json_object"})
    assert tagged.accepts(form, '{"any": [1, {"thing": null}]}')
    assert not tagged.reads(form, "[")
    assert not tagged.reads(form, "Here")


def test_json_of_a_schema_is_nothing_else(tagged: Walker) -> None:
    form = grammar(tagged, response_format=AS_JSON)
    assert tagged.accepts(form, '{"a": 1}')
    for text in ('{"a": "1"', '{"b"', '{"a": 1} ', "x"):
        assert not tagged.reads(form, text)


def test_a_schema_that_isnt_given_is_any_object(tagged: Walker) -> None:
    assert tagged.accepts(grammar(tagged, response_format={"type": "json_schema", "json_schema": {"name": "x"}}), "{}")


@pytest.mark.parametrize("made", [(OSLO,), (MARS,)])
def test_an_answer_may_be_a_call(any_markup: Walker, made: tuple[tuple[str, str], ...]) -> None:
    assert any_markup.accepts(grammar(any_markup, tools=TOOLS), calls(any_markup, *made))


@pytest.mark.parametrize("text", ["", "It is {warm} in Oslo.", "a <tool_ca", "漢字\n\nÉ"])
def test_an_answer_may_be_text(any_markup: Walker, text: str) -> None:
    assert any_markup.accepts(grammar(any_markup, tools=TOOLS), text)


@pytest.mark.parametrize("name", ["tagged", "listed"])
def test_text_may_come_before_calls(name: str, request: pytest.FixtureRequest) -> None:
    walker: Walker = request.getfixturevalue(name)
    form = grammar(walker, tools=TOOLS)
    assert walker.accepts(form, "Let me see.\n" + calls(walker, OSLO, MARS, OSLO))
    assert not walker.reads(form, "Let me see.\n" + calls(walker, OSLO) + " So")


def test_where_calls_have_no_mark_the_first_brace_begins_one(bare: Walker) -> None:
    form = grammar(bare, tools=TOOLS)
    assert not bare.reads(form, '{"place"')
    assert not bare.reads(form, " {")
    assert not bare.reads(form, calls(bare, OSLO) + calls(bare, OSLO))


@pytest.mark.parametrize(
    "wrong", ['{"name": "tides', '{"name": "weather", "arguments": {"place": "Mars', '{"arguments']
)
def test_a_call_that_has_begun_is_of_a_function_and_its_schema(tagged: Walker, wrong: str) -> None:
    assert not tagged.reads(grammar(tagged, tools=TOOLS), f"<tool_call>\n{wrong}")


def test_where_a_call_is_required_nothing_else_comes(any_markup: Walker) -> None:
    form = grammar(any_markup, tools=TOOLS, tool_choice="required")
    assert any_markup.accepts(form, calls(any_markup, MARS))
    assert not any_markup.accepts(form, "")
    assert not any_markup.reads(form, "Let")


def test_a_named_function_is_called_once_and_no_other(any_markup: Walker) -> None:
    chosen = {"type": "function", "function": {"name": "weather_in_space"}}
    form = grammar(any_markup, tools=TOOLS, tool_choice=chosen)
    assert any_markup.accepts(form, calls(any_markup, MARS))
    assert not any_markup.reads(form, calls(any_markup, OSLO))
    assert not any_markup.reads(form, calls(any_markup, MARS, MARS))


@pytest.mark.parametrize("name", ["tagged", "listed"])
def test_there_is_one_call_where_they_arent_to_be_parallel(name: str, request: pytest.FixtureRequest) -> None:
    walker: Walker = request.getfixturevalue(name)
    form = grammar(walker, tools=TOOLS, parallel_tool_calls=False)
    assert walker.accepts(form, calls(walker, OSLO))
    assert not walker.reads(form, calls(walker, OSLO, OSLO))


def test_calls_have_a_bound(tagged: Walker) -> None:
    form = grammar(tagged, tools=TOOLS)
    assert tagged.accepts(form, calls(tagged, *[OSLO] * 32))
    assert not tagged.reads(form, calls(tagged, *[OSLO] * 33))


def test_json_and_calls_may_be_asked_for_together(tagged: Walker) -> None:
    form = grammar(tagged, tools=TOOLS, response_format=AS_JSON)
    assert tagged.accepts(form, '{"a": 1}')
    assert tagged.accepts(form, calls(tagged, OSLO))
    assert not tagged.reads(form, "Let")


def test_json_beside_calls_that_have_no_mark_is_refused_but_where_a_call_must_be(bare: Walker) -> None:
    with pytest.raises(FormError, match="response_format") as error:
        grammar(bare, tools=TOOLS, response_format=AS_JSON)
    assert error.value.param == "response_format"
    assert bare.accepts(grammar(bare, tools=TOOLS, response_format=AS_JSON, tool_choice="required"), calls(bare, OSLO))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_written_of_calls_can_be_read(tagged: Walker, seed: int) -> None:
    text = tagged.text(grammar(tagged, tools=TOOLS, tool_choice="required", parallel_tool_calls=False), seed)
    assert text
    called = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert called["arguments"]["place"] in ("Oslo", "Rome", "Mars")


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (7, "response_format"),
        ({"type": "xml"}, "response_format"),
        ({"type": "json_schema"}, "response_format"),
        ({"type": "json_schema", "json_schema": {"schema": 7}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, "response_format.json_schema.schema.not"),
    ],
)
def test_a_bad_format_is_named(value: Any, param: str) -> None:
    with pytest.raises(FormError) as error:
        Form.read({"response_format": value})
    assert error.value.param == param


def test_each_schema_can_be_tried_by_itself() -> None:
    params = [param for param, _ in Form.read({"tools": TOOLS, "response_format": AS_JSON}).parts()]
    assert params == ["response_format.json_schema.schema", *(f"tools[{n}].function.parameters" for n in range(2))]
