from __future__ import annotations

from typing import Any

import pytest

from nodes.keywords import SchemaError
from nodes.schemas import kept_schema


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#"}}},
        {"$defs": {"a/b~c d": {}}, "items": {"$ref": "#/$defs/a~1b~0c%20d"}},
        {"prefixItems": [{"type": "null"}, {"$ref": "#/prefixItems/0"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}, "b": {}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}}}},
    ],
)
def test_references_within_a_schema_are_kept(schema: Any) -> None:
    assert kept_schema(schema) == schema


@pytest.mark.parametrize(
    ("schema", "place", "words"),
    [
        ({"$ref": "http://example.com/x"}, ".$ref", "leads out"),
        ({"items": {"$ref": "other.json#/a"}}, ".items.$ref", "leads out"),
        ({"items": {"$ref": "#/nowhere"}}, ".items.$ref", "leads nowhere"),
        ({"items": {"$ref": "#name"}}, ".items.$ref", "leads nowhere"),
        ({"$ref": "#/$defs", "$defs": {}}, ".$ref", "leads nowhere"),
        ({"$ref": 7}, ".$ref", "must be a string"),
        ({"$ref": "#"}, ".$ref", "back to itself"),
        ({"allOf": [{"$ref": "#"}]}, ".allOf[0].$ref", "back to itself"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}},
            ".$defs.a.$ref",
            "back to itself",
        ),
    ],
)
def test_a_reference_that_leads_to_no_schema_is_refused(schema: Any, place: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words) as error:
        kept_schema(schema)
    assert error.value.place == place


@pytest.mark.parametrize("hidden", ["const", "default", "x-hidden"])
def test_what_no_one_has_looked_at_isnt_led_to(hidden: str) -> None:
    """A number that ends the library's process could stand there."""
    with pytest.raises(SchemaError, match="leads nowhere"):
        kept_schema({"properties": {"a": {hidden: {"minimum": 1}}}, "items": {"$ref": f"#/properties/a/{hidden}"}})


def test_a_long_chain_is_followed() -> None:
    chain = {str(number): {"$ref": f"#/$defs/{number + 1}"} for number in range(3000)}
    schema = {"$ref": "#/$defs/0", "$defs": {**chain, "3000": {"type": "null"}}}
    assert kept_schema(schema) == schema
