from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodes.grammar import GrammarError
from nodes.keywords import SchemaError
from nodes.schemas import MAX_DEPTH, json_grammar, kept_object, kept_schema
from nodes.text import Tokenizer
from tests.nodes.models import make_tokenizer
from tests.nodes.walks import Walker

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "mood": {"enum": ["good", "bad"]},
        "home": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "height": {"type": "number"}},
            "required": ["zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "mood", "home"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def walker() -> Walker:
    return Walker(Tokenizer(make_tokenizer(), {2}))


def grammar(schema: Any) -> str:
    return f"start: {json_grammar(kept_schema(schema))}"


def refused(schema: Any) -> SchemaError:
    with pytest.raises(SchemaError) as error:
        kept_schema(schema)
    return error.value


@pytest.mark.parametrize(
    "schema",
    [
        PERSON,
        {"type": "array", "items": {"enum": [1, "two", None, {"a": [1, 2]}]}, "minItems": 2, "maxItems": 3},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": False},
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "minimum": 3},
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 4}}},
            ]
        },
        {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
        {"type": "integer", "multipleOf": 7, "exclusiveMinimum": 20},
        {"type": "object", "patternProperties": {"^[ab]$": {"type": "integer"}}, "additionalProperties": False},
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2, "maxProperties": 2},
        {"type": "object", "properties": {"a": False}, "required": ["b"]},
        {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
        {"definitions": {"a": {"const": "é\n"}}, "type": "object", "properties": {"x": {"$ref": "#/definitions/a"}}},
        {"type": "string", "format": "date"},
        {"type": ["integer", "boolean"]},
        True,
    ],
    ids=lambda schema: "-".join(schema) if isinstance(schema, dict) else "true",
)
def test_whatever_comes_satisfies_the_schema(walker: Walker, schema: Any) -> None:
    texts = [walker.text(grammar(schema), seed) for seed in range(6)]
    ended = [text for text in texts if text is not None]

    assert ended
    for text in ended:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


NAMES = st.sampled_from(["a", "b", "title", "é"])
NUMBERS = {name: st.integers(-20, 200) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")}
LEAVES = st.one_of(
    st.sampled_from([True, {}, {"type": "null"}, {"type": ["boolean", "null"]}]),
    st.fixed_dictionaries({"type": st.sampled_from(["integer", "number"])}, optional=NUMBERS),
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 6), "pattern": st.just("^[a-c]+$")},
    ),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.sampled_from([1, "a", None, "é\n", {"x": [1]}]), min_size=1)
    ),
)


def larger(smaller: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(smaller, min_size=1, max_size=3)
    length = {"minItems": st.integers(0, 2), "maxItems": st.integers(2, 3), "prefixItems": several}
    an_object: dict[str, st.SearchStrategy[Any]] = {
        "type": st.just("object"),
        "properties": st.dictionaries(NAMES, smaller, max_size=3),
    }
    required = {"required": st.lists(NAMES, unique=True), "additionalProperties": smaller | st.just(False)}
    return st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": smaller}, optional=length),
        st.fixed_dictionaries(an_object, optional=required),
        st.builds(lambda word, choices: {word: choices}, st.sampled_from(["anyOf", "allOf", "oneOf"]), several),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.recursive(LEAVES, larger, max_leaves=6), st.integers(0, 100))
def test_a_schema_is_kept_or_refused_whatever_it_is_put_together_from(walker: Walker, schema: Any, seed: int) -> None:
    try:
        text = walker.text(grammar(schema), seed, max_tokens=120)
    except (GrammarError, SchemaError):
        return
    if text is not None:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


def test_there_is_a_space_after_a_comma_and_a_colon_and_nowhere_else(walker: Walker) -> None:
    lists = grammar({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}})
    assert walker.accepts(lists, '{"a": [1, 2], "b": []}')
    for text in (" ", "{ ", '{"a":[', '{"a": [ ', '{"a": [1,2', '{"a": [1,  '):
        assert not walker.reads(lists, text)


@pytest.mark.parametrize("cut", ["", "{", '{"name": "Ann', '{"name": "Ann", "age": 7'])
def test_nothing_is_whole_before_its_end(walker: Walker, cut: str) -> None:
    assert walker.reads(grammar(PERSON), cut)
    assert not walker.accepts(grammar(PERSON), cut)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"not": {}}, ".not"),
        ({"type": "string", "minLenght": 3}, ".minLenght"),
        ({"properties": {"a": {"if": {"type": "string"}}}}, ".properties.a.if"),
        ({"anyOf": [{}, {"uniqueItems": True}]}, ".anyOf[1].uniqueItems"),
        ({"items": {"contains": {}}}, ".items.contains"),
        ({"$defs": {"a": {"nullable": True}}}, ".$defs.a.nullable"),
        ({"unevaluatedProperties": False}, ".unevaluatedProperties"),
        ({"type": "string", "contentEncoding": "base64"}, ".contentEncoding"),
        ({"dependentRequired": {"a": ["b"]}}, ".dependentRequired"),
    ],
)
def test_what_cant_be_kept_is_refused_by_name(schema: Any, place: str) -> None:
    error = refused(schema)
    assert error.place == place
    assert "isn't supported" in str(error)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (7, ""),
        ({"properties": []}, ".properties"),
        ({"anyOf": {}}, ".anyOf"),
        ({"items": "string"}, ".items"),
        ({"properties": {"a": None}}, ".properties.a"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: Any, place: str) -> None:
    assert refused(schema).place == place


def test_what_says_nothing_is_left_out_and_properties_of_that_name_are_not() -> None:
    schema = {
        "title": "T",
        "description": "D",
        "x-order": 1,
        "x-guidance": {"lenient": True},
        "uniqueItems": False,
        "properties": {"title": {"type": "string", "default": "a"}, "not": {"$comment": "c"}},
        "enum": [{"title": 1}],
    }
    assert kept_schema(schema) == {"properties": {"title": {"type": "string"}, "not": {}}, "enum": [{"title": 1}]}


def test_numbers_and_patterns_are_looked_at_wherever_they_stand() -> None:
    huge, long = 10**19, "^(a{1000}){1000}$"
    for schema, place in (
        ({"type": "integer", "minimum": -huge, "maximum": -huge}, ".minimum"),
        ({"properties": {"a": {"items": [{"const": {"b": [huge]}}]}}}, ".properties.a.items[0].const.b[0]"),
        ({"$defs": {"x": {"enum": [1, -(2**63)]}}}, ".$defs.x.enum[1]"),
        ({"anyOf": [{"pattern": long}]}, ".anyOf[0].pattern"),
        ({"patternProperties": {"(": {}}}, ".patternProperties.("),
        ({"properties": {"a": {"minLength": 3, "maxLength": 2}}}, ".properties.a.maxLength"),
    ):
        assert refused(schema).place == place


def test_many_patterns_are_too_complex_where_each_is_not() -> None:
    schema = {"anyOf": [{"pattern": "^[a-z]{400}$"} for _ in range(5)]}
    assert refused(schema).place == ".anyOf[4].pattern"


def test_many_patterns_of_one_value_are_too_complex() -> None:
    """Each takes the library several times as long as the one before it."""
    patterns = [{"pattern": f"^(a|b)*a(a|b){{{number}}}$"} for number in range(9)]
    assert refused({"allOf": patterns}).place == ".allOf[8]"
    assert kept_schema({"anyOf": patterns})
    assert kept_schema({"allOf": patterns[:8]})
    chain: Any = {}
    for one in patterns:
        chain = {"anyOf": [chain, {"type": "null"}]} | one
    assert "too complex" in str(refused(chain))


def test_a_format_beside_a_number_says_nothing() -> None:
    assert kept_schema({"type": "integer", "format": "int32"}) == {"type": "integer"}
    assert refused({"format": "int32"}).place == ".format"


def shape(kind: Any, **properties: Any) -> dict[str, Any]:
    given = {"kind": {"const": kind}} | properties
    return {"type": "object", "properties": given, "required": ["kind"], "additionalProperties": False}


@pytest.mark.parametrize("is_referred", [False, True])
def test_one_of_several_that_a_property_tells_apart_is_any_of_them(walker: Walker, is_referred: bool) -> None:
    choices = {"dot": shape(1), "line": shape(2, length={"type": "integer"})}
    referred = [{"$ref": f"#/$defs/{name}"} for name in choices] if is_referred else list(choices.values())
    tagged = grammar({"oneOf": referred, "$defs": choices, "discriminator": {"propertyName": "kind"}})
    assert walker.accepts(tagged, '{"kind": 1}')
    assert walker.accepts(tagged, '{"kind": 2, "length": 7}')
    assert not walker.reads(tagged, '{"kind": 1, ')


@pytest.mark.parametrize(
    "choices",
    [
        [shape(1), shape(1)],
        [shape(1), {"type": "object", "properties": {"kind": {"type": "integer"}}, "required": ["kind"]}],
        [shape(1) | {"required": []}, shape(2)],
        [shape(1), {"properties": {"kind": {"const": 2}}, "required": ["kind"]}],
        [shape(1), True],
    ],
)
def test_one_of_several_that_may_hold_at_once_stays_what_it_is(choices: list[Any]) -> None:
    assert "anyOf" not in kept_schema({"oneOf": choices})


def test_schemas_within_schemas_have_a_bound() -> None:
    schema: Any = {}
    for _ in range(MAX_DEPTH - 1):
        schema = {"items": schema}
    assert kept_schema(schema) == schema
    assert "schemas deep" in str(refused({"items": schema}))


def test_arguments_are_an_object() -> None:
    assert kept_object({"properties": {}}) == {"type": "object", "properties": {}}
    referring = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}
    assert kept_object(referring) == referring
    for schema in ({"type": "string"}, {"type": ["object", "null"]}, True):
        with pytest.raises(SchemaError, match="object"):
            kept_object(schema)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(SchemaError, match="surrogate"):
        json_grammar({"const": "\ud83d"})
    nested: Any = 1
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(SchemaError, match="deeply"):
        json_grammar({"const": nested})
